// The CPU backend against loops in float64, and the promises it makes about bits and memory.
#include "cpu/cpu_ops.h"

#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/float_convert.h"
#include "cpu/thread_pool.h"
#include "packhorse/error.h"
#include "test.h"

namespace packhorse {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

std::unique_ptr<Ops> make(int threads) { return make_cpu_ops({threads}); }

std::vector<DType> dtypes() {
  std::vector<DType> result = {DType::kFloat32};
  try {
    make(1)->check_dtype(DType::kBFloat16);
    result.push_back(DType::kBFloat16);
  } catch (const RuntimeError&) {
  }
  return result;
}

// A matrix in the dtype under test; `values` holds what the dtype can hold.
struct Matrix {
  Matrix() = default;
  Matrix(int64_t rows, int64_t columns, DType dtype)
      : rows(rows), columns(columns), dtype(dtype), bytes(count() * size_of(dtype)) {}

  size_t count() const { return static_cast<size_t>(rows * columns); }
  static Matrix random(int64_t rows, int64_t columns, DType dtype, unsigned seed,
                       float scale = 1.0f) {
    Matrix matrix(rows, columns, dtype);
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal(0.0f, scale);
    std::vector<float> values(matrix.count());
    for (float& value : values) value = normal(generator);
    matrix.set(values);
    return matrix;
  }
  void set(const std::vector<float>& values) {
    from_float32(values.data(), dtype, bytes.data(), values.size());
  }
  std::vector<float> values() const {
    std::vector<float> result(count());
    to_float32(bytes.data(), dtype, result.data(), result.size());
    return result;
  }
  void fill_row(int64_t row, float value) {
    std::vector<float> all = values();
    std::fill_n(all.begin() + row * columns, columns, value);
    set(all);
  }
  void copy_row(int64_t to, const Matrix& other, int64_t from) {
    std::memcpy(row(to), other.row(from), row_bytes());
  }
  size_t row_bytes() const { return static_cast<size_t>(columns) * size_of(dtype); }
  const std::byte* row(int64_t i) const {
    return bytes.data() + static_cast<size_t>(i) * row_bytes();
  }
  std::byte* row(int64_t i) { return bytes.data() + static_cast<size_t>(i) * row_bytes(); }
  bool same_rows(int64_t first, const Matrix& other, int64_t other_first, int64_t count) const {
    return std::memcmp(row(first), other.row(other_first),
                       static_cast<size_t>(count) * row_bytes()) == 0;
  }
  TensorView view() { return TensorView(bytes.data(), dtype, rows, columns); }

  int64_t rows = 0, columns = 0;
  DType dtype = DType::kFloat32;
  std::vector<std::byte> bytes;
};

// Greatest |found - expected| relative to the dtype's precision and the size of the values.
bool close(const Matrix& found, const std::vector<double>& expected, double tolerance = 1.0) {
  const double unit = found.dtype == DType::kBFloat16 ? 8e-3 : 4e-6;
  double scale = 1.0;
  for (double value : expected) scale = std::max(scale, std::abs(value));
  const std::vector<float> values = found.values();
  for (size_t i = 0; i < values.size(); ++i) {
    if (!(std::abs(values[i] - expected[i]) <= tolerance * unit * scale)) {
      std::cerr << "element " << i << ": found " << values[i] << ", expected " << expected[i]
                << ", scale " << scale << "\n";
      return false;
    }
  }
  return true;
}

double activate(Activation activation, double x) {
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kGelu:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case Activation::kGeluTanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::kRelu:
      return std::max(x, 0.0);
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kTanh:
      return std::tanh(x);
    case Activation::kSigmoid:
      return 1 / (1 + std::exp(-x));
  }
  return x;
}

// A dense layer packed for the device, and what it was made of.
struct Dense {
  Dense(Ops& ops, int64_t in, int64_t out, DType dtype, unsigned seed, bool with_bias = true)
      : in(in),
        out(out),
        weight(Matrix::random(out, in, dtype, seed, 1 / std::sqrt(float(in))).values()),
        bias(Matrix::random(1, out, DType::kFloat32, seed + 1).values()),
        packed(ops.linear_bytes(in, out, dtype)) {
    ops.pack_linear(weight.data(), in, out, dtype, packed.data());
    view = {in, out, dtype, packed.data(), with_bias ? bias.data() : nullptr};
    if (!with_bias) std::fill(bias.begin(), bias.end(), 0.0f);
  }
  template <class T>
  std::vector<double> apply(const std::vector<T>& x, Activation activation) const {
    const auto rows = static_cast<int64_t>(x.size()) / in;
    std::vector<double> result(static_cast<size_t>(rows * out));
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < out; ++j) {
        double sum = bias[size_t(j)];
        for (int64_t c = 0; c < in; ++c) {
          sum += double(x[size_t(i * in + c)]) * double(weight[size_t(j * in + c)]);
        }
        result[size_t(i * out + j)] = activate(activation, sum);
      }
    }
    return result;
  }
  int64_t in, out;
  std::vector<float> weight, bias;
  std::vector<std::byte> packed;
  LinearWeight view;
};

struct Norm {
  explicit Norm(int64_t columns, NormKind kind = NormKind::kLayer)
      : gamma(Matrix::random(1, columns, DType::kFloat32, 91).values()),
        beta(Matrix::random(1, columns, DType::kFloat32, 92).values()) {
    view = {kind, gamma.data(), kind == NormKind::kRms ? nullptr : beta.data(), 1e-6f};
    if (kind == NormKind::kRms) std::fill(beta.begin(), beta.end(), 0.0f);
  }
  void apply(std::vector<double>& x) const {
    const size_t columns = gamma.size();
    for (size_t first = 0; first < x.size(); first += columns) {
      double mean = 0, squares = 0;
      for (size_t c = 0; c < columns; ++c) mean += x[first + c] / double(columns);
      if (view.kind == NormKind::kRms) mean = 0;
      for (size_t c = 0; c < columns; ++c) squares += std::pow(x[first + c] - mean, 2);
      const double scale = 1 / std::sqrt(squares / double(columns) + double(view.eps));
      for (size_t c = 0; c < columns; ++c) {
        x[first + c] = (x[first + c] - mean) * scale * gamma[c] + beta[c];
      }
    }
  }
  std::vector<float> gamma, beta;
  NormWeight view;
};

void add(std::vector<double>& x, const std::vector<float>& y) {
  for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

// For tests of bits: one op with everything it needs, applied to any x.
class RowOp {
 public:
  virtual ~RowOp() = default;
  virtual Matrix run(Matrix x) = 0;
};

struct LinearOp final : RowOp {
  LinearOp(int threads, int64_t in, int64_t out, DType dtype, bool finish)
      : ops(make(threads)), dense(*ops, in, out, dtype, 3), norm(out), finish(finish) {}
  Matrix run(Matrix x) override {
    Matrix out(x.rows, dense.out, x.dtype);
    // Residual: the input's first column in every column, so that it too depends on the row alone.
    Matrix residual(x.rows, dense.out, x.dtype);
    for (int64_t i = 0; i < x.rows; ++i) {
      for (int64_t j = 0; j < dense.out; ++j) {
        std::memcpy(residual.row(i) + j * int64_t(size_of(x.dtype)), x.row(i), size_of(x.dtype));
      }
    }
    std::vector<std::byte> workspace(ops->linear_workspace(x.rows, dense.in, dense.out, x.dtype));
    LinearArgs args;
    args.x = x.view();
    args.weight = dense.view;
    args.activation = Activation::kGelu;
    if (finish) {
      args.residual = residual.view();
      args.norm = norm.view;
    }
    args.out = out.view();
    args.workspace = workspace.data();
    ops->linear(args);
    return out;
  }
  std::unique_ptr<Ops> ops;
  Dense dense;
  Norm norm;
  bool finish;
};

struct FeedForwardOp final : RowOp {
  FeedForwardOp(int threads, int64_t hidden, int64_t intermediate, DType dtype,
                Activation activation = Activation::kGelu)
      : ops(make(threads)),
        up(*ops, hidden, intermediate, dtype, 5),
        down(*ops, intermediate, hidden, dtype, 7),
        norm(hidden),
        activation(activation) {}
  Matrix run(Matrix x) override {
    std::vector<std::byte> workspace(ops->feed_forward_workspace(x.rows, up.in, up.out, x.dtype));
    FeedForwardArgs args;
    args.x = x.view();
    args.up = up.view;
    args.down = down.view;
    args.activation = activation;
    args.residual = x.view();  // in place, as the encoder does
    args.norm = norm.view;
    args.out = x.view();
    args.workspace = workspace.data();
    ops->feed_forward(args);
    return x;
  }
  std::unique_ptr<Ops> ops;
  Dense up, down;
  Norm norm;
  Activation activation;
};

// Attention over fused QKV, with all options.
struct AttentionOp {
  Matrix run(Matrix qkv, std::vector<int32_t> cu_seqlens) {
    const int64_t kv_columns = int64_t{kv_heads} * head_dim;
    const int64_t q_columns = int64_t{heads} * head_dim;
    Matrix out(qkv.rows, q_columns, qkv.dtype);
    AttentionArgs args;
    args.q = qkv.view().column_slice(0, q_columns);
    args.k = qkv.view().column_slice(q_columns, kv_columns);
    args.v = qkv.view().column_slice(q_columns + kv_columns, kv_columns);
    args.out = out.view();
    args.queries = batch_of(cu_seqlens);
    args.keys = args.queries;
    return finish(args, out);
  }
  Matrix finish(AttentionArgs args, Matrix& out) {
    args.num_heads = heads;
    args.num_kv_heads = kv_heads;
    args.head_dim = head_dim;
    args.scale = 0.3f;
    args.mask = mask;
    args.term = term;
    std::vector<std::byte> workspace(
        ops->attention_workspace(args.queries.num_tokens, args.queries.num_sequences,
                                 args.keys.max_seqlen, heads, head_dim, out.dtype));
    args.workspace = workspace.data();
    ops->attention(args);
    return out;
  }
  static BatchView batch_of(const std::vector<int32_t>& cu_seqlens) {
    BatchView batch;
    batch.num_sequences = static_cast<int64_t>(cu_seqlens.size()) - 1;
    batch.num_tokens = cu_seqlens.back();
    batch.cu_seqlens = cu_seqlens.data();
    for (size_t i = 1; i < cu_seqlens.size(); ++i) {
      batch.max_seqlen = std::max<int64_t>(batch.max_seqlen, cu_seqlens[i] - cu_seqlens[i - 1]);
    }
    return batch;
  }
  double bias(int64_t head, int64_t distance) const {
    if (term.kind == ScoreTermKind::kAlibi) {
      return -double(term.slopes[head]) * double(std::abs(distance));
    }
    if (term.kind == ScoreTermKind::kNone) return 0;
    const int half = term.num_buckets / 2, exact = half / 2;
    auto bucket = static_cast<int>(std::abs(distance));
    if (bucket >= exact) {
      const float ratio = float(bucket) / float(exact);
      const float range = float(std::log(double(term.max_distance) / exact));
      bucket = std::min(half - 1, exact + int(std::log(ratio) / range * float(half - exact)));
    }
    return double(term.table[(bucket + (distance > 0 ? half : 0)) * heads + head]);
  }
  // One sequence: q [nq, H d], k and v [nk, Hkv d], all contiguous.
  std::vector<double> expect(const std::vector<float>& q, const std::vector<float>& k,
                             const std::vector<float>& v, int64_t nq, int64_t nk) const {
    std::vector<double> out(static_cast<size_t>(nq * heads * head_dim));
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t g = h / (heads / kv_heads);
      for (int64_t i = 0; i < nq; ++i) {
        const int64_t position = nk - nq + i;
        std::vector<double> weights(static_cast<size_t>(nk), 0.0);
        double greatest = -INFINITY, sum = 0;
        for (int64_t pass = 0; pass < 2; ++pass) {
          for (int64_t j = 0; j < nk; ++j) {
            if (mask.causal && j > position) continue;
            if (mask.window_left >= 0 && j < position - mask.window_left) continue;
            if (mask.window_right >= 0 && j > position + mask.window_right) continue;
            double score = 0;
            for (int64_t c = 0; c < head_dim; ++c) {
              score += double(q[size_t((i * heads + h) * head_dim + c)]) *
                       double(k[size_t((j * kv_heads + g) * head_dim + c)]);
            }
            score = score * double(0.3f) + bias(h, j - position);
            if (pass == 0) greatest = std::max(greatest, score);
            if (pass == 1) sum += weights[size_t(j)] = std::exp(score - greatest);
          }
        }
        for (int64_t c = 0; c < head_dim && sum > 0; ++c) {
          double value = 0;
          for (int64_t j = 0; j < nk; ++j) {
            value += weights[size_t(j)] * double(v[size_t((j * kv_heads + g) * head_dim + c)]);
          }
          out[size_t((i * heads + h) * head_dim + c)] = value / sum;
        }
      }
    }
    return out;
  }
  std::unique_ptr<Ops> ops;
  int32_t heads = 4, kv_heads = 4, head_dim = 32;
  AttentionMask mask = {};
  ScoreTerm term = {};
};

std::vector<float> columns_of(const Matrix& matrix, int64_t row, int64_t rows, int64_t first,
                              int64_t count) {
  const std::vector<float> values = matrix.values();
  std::vector<float> result(static_cast<size_t>(rows * count));
  for (int64_t i = 0; i < rows; ++i) {
    std::copy_n(values.begin() + (row + i) * matrix.columns + first, count,
                result.begin() + i * count);
  }
  return result;
}

std::vector<int32_t> prefix_sums(const std::vector<int32_t>& lengths) {
  std::vector<int32_t> sums = {0};
  for (int32_t length : lengths) sums.push_back(sums.back() + length);
  return sums;
}

// Runs `op` over a batch of uneven sequences and compares each with the reference.
bool attention_agrees(AttentionOp& op, DType dtype, const std::vector<int32_t>& lengths) {
  const std::vector<int32_t> cu_seqlens = prefix_sums(lengths);
  const int64_t q = int64_t{op.heads} * op.head_dim, kv = int64_t{op.kv_heads} * op.head_dim;
  const Matrix qkv = Matrix::random(cu_seqlens.back(), q + 2 * kv, dtype, 17);
  const Matrix found = op.run(qkv, cu_seqlens);
  bool agrees = true;
  for (size_t s = 0; s < lengths.size(); ++s) {
    const int64_t row = cu_seqlens[s], n = lengths[s];
    Matrix part(n, q, dtype);
    part.set(columns_of(found, row, n, 0, q));
    agrees &= close(part, op.expect(columns_of(qkv, row, n, 0, q), columns_of(qkv, row, n, q, kv),
                                    columns_of(qkv, row, n, q + kv, kv), n, n));
  }
  return agrees;
}

TEST(cpu_linear_matches_float64) {
  for (DType dtype : dtypes()) {
    const auto ops = make(2);
    for (auto [rows, in, out] : {std::tuple{1, 26, 52},
                                 {3, 384, 70},
                                 {64, 100, 384},
                                 {65, 384, 1152},
                                 {130, 77, 199},
                                 {300, 64, 48}}) {
      for (int option = 0; option < 4; ++option) {
        const Dense dense(*ops, in, out, dtype, 11, option != 1);
        const Norm norm(out);
        Matrix x = Matrix::random(rows, in, dtype, 12);
        Matrix result = Matrix::random(rows, out, dtype, 13);  // also the residual: in place
        std::vector<double> expected = dense.apply(x.values(), Activation::kNone);
        LinearArgs args;
        if (option >= 2) {
          add(expected, result.values());
          args.residual = result.view();
        }
        if (option == 3) {
          norm.apply(expected);
          args.norm = norm.view;
        }
        std::vector<std::byte> workspace(ops->linear_workspace(rows, in, out, dtype));
        args.x = x.view();
        args.weight = dense.view;
        args.out = result.view();
        args.workspace = workspace.data();
        ops->linear(args);
        CHECK(close(result, expected));
      }
    }
  }
}

TEST(cpu_linear_reads_and_writes_strided_rows) {
  const auto ops = make(2);
  const Dense dense(*ops, 40, 30, DType::kFloat32, 11);
  Matrix x = Matrix::random(100, 50, DType::kFloat32, 12);
  Matrix out(100, 90, DType::kFloat32);
  std::vector<std::byte> workspace(ops->linear_workspace(100, 40, 30, DType::kFloat32));
  LinearArgs args;
  args.x = x.view().column_slice(5, 40);
  args.weight = dense.view;
  args.out = out.view().column_slice(60, 30);
  args.workspace = workspace.data();
  ops->linear(args);
  Matrix part(100, 30, DType::kFloat32);
  part.set(columns_of(out, 0, 100, 60, 30));
  CHECK(close(part, dense.apply(columns_of(x, 0, 100, 5, 40), Activation::kNone)));
  for (float value : columns_of(out, 0, 100, 0, 60)) CHECK(value == 0);
}

TEST(cpu_feed_forward_matches_float64) {
  const Activation all[] = {Activation::kNone,   Activation::kGelu, Activation::kGeluTanh,
                            Activation::kRelu,   Activation::kSilu, Activation::kTanh,
                            Activation::kSigmoid};
  for (DType dtype : dtypes()) {
    for (Activation activation : all) {
      for (int threads : {1, 3}) {
        FeedForwardOp op(threads, 72, 200, dtype, activation);
        for (int64_t rows : {0, 1, 16, 63, 65, 200, 333}) {
          const Matrix x = Matrix::random(rows, 72, dtype, 21);
          const Matrix found = op.run(x);
          std::vector<double> middle = op.up.apply(x.values(), activation);
          std::vector<float> rounded(middle.begin(), middle.end());
          if (dtype == DType::kBFloat16) {
            for (float& value : rounded) value = bfloat16_to_float32(float32_to_bfloat16(value));
          }
          std::vector<double> expected = op.down.apply(rounded, Activation::kNone);
          add(expected, x.values());
          op.norm.apply(expected);
          // The norm may magnify: compare against the size of what it divides.
          CHECK(close(found, expected, 3.0));
        }
      }
    }
  }
}

// The same row everywhere: alone, at every position of batches that need full and partial blocks,
// split and whole ones, with 1 and 3 threads, among NaN and Inf.
bool bits_depend_on_the_row_alone(RowOp& one, RowOp& three, int64_t columns, DType dtype) {
  const Matrix row = Matrix::random(1, columns, dtype, 31);
  const Matrix alone = one.run(row);
  bool same = true;
  for (int64_t rows : {1, 2, 15, 16, 17, 31, 33, 48, 63, 64, 65, 127, 130, 200, 257}) {
    Matrix equal(rows, columns, dtype);
    Matrix mixed = Matrix::random(rows, columns, dtype, static_cast<unsigned>(rows));
    for (int64_t i = 0; i < rows; ++i) {
      equal.copy_row(i, row, 0);
      if (i % 3 == 1) mixed.copy_row(i, row, 0);
      if (i % 6 == 2) mixed.fill_row(i, i % 4 == 0 ? kNaN : kInf);
    }
    for (RowOp* op : {&one, &three}) {
      const Matrix from_equal = op->run(equal);
      const Matrix from_mixed = op->run(mixed);
      for (int64_t i = 0; i < rows; ++i) {
        same &= from_equal.same_rows(i, alone, 0, 1);
        if (i % 3 == 1) same &= from_mixed.same_rows(i, alone, 0, 1);
      }
    }
  }
  return same;
}

TEST(cpu_linear_bits_depend_on_the_row_alone) {
  for (DType dtype : dtypes()) {
    for (auto [in, out] : {std::pair{384, 384}, {100, 200}, {33, 17}, {1000, 500}}) {
      for (bool finish : {false, true}) {
        LinearOp one(1, in, out, dtype, finish);
        LinearOp three(3, in, out, dtype, finish);
        CHECK(bits_depend_on_the_row_alone(one, three, in, dtype));
      }
    }
  }
}

TEST(cpu_feed_forward_bits_depend_on_the_row_alone) {
  for (DType dtype : dtypes()) {
    for (auto [hidden, intermediate] : {std::pair{128, 512}, {76, 300}}) {
      FeedForwardOp one(1, hidden, intermediate, dtype);
      FeedForwardOp three(3, hidden, intermediate, dtype);
      CHECK(bits_depend_on_the_row_alone(one, three, hidden, dtype));
    }
  }
}

TEST(cpu_attention_matches_float64) {
  const std::vector<int32_t> lengths = {1, 0, 5, 64, 17, 130, 1, 65, 300, 2};
  for (DType dtype : dtypes()) {
    for (auto [heads, kv_heads, head_dim] :
         {std::tuple{4, 4, 32}, {4, 2, 16}, {6, 1, 48}, {2, 2, 64}, {1, 1, 128}, {1, 1, 256}}) {
      for (auto mask : {AttentionMask{},
                        {true, -1, -1},
                        {false, 10, 3},
                        {true, 150, -1},
                        {false, -1, 0},
                        {false, 0, 0}}) {
        AttentionOp op;
        op.ops = make(3);
        op.heads = heads;
        op.kv_heads = kv_heads;
        op.head_dim = head_dim;
        op.mask = mask;
        CHECK(attention_agrees(op, dtype, lengths));
      }
    }
  }
}

TEST(cpu_attention_adds_score_terms) {
  const float slopes[] = {0.5f, 0.25f, 0.125f, 0.01f};
  const std::vector<float> table = Matrix::random(32, 4, DType::kFloat32, 41).values();
  for (DType dtype : dtypes()) {
    AttentionOp op;
    op.ops = make(2);
    op.term.kind = ScoreTermKind::kAlibi;
    op.term.slopes = slopes;
    CHECK(attention_agrees(op, dtype, {3, 70, 200}));
    op.mask.causal = true;
    CHECK(attention_agrees(op, dtype, {3, 70, 200}));
    op.mask = {};
    op.term.kind = ScoreTermKind::kBucketed;
    op.term.table = table.data();
    for (auto [buckets, distance] : {std::pair{32, 128}, {32, 20}, {8, 1000}, {4, 2}}) {
      op.term.num_buckets = buckets;
      op.term.max_distance = distance;
      CHECK(attention_agrees(op, dtype, {3, 70, 400}));
    }
  }
}

TEST(cpu_attention_takes_queries_after_cached_keys) {
  for (DType dtype : dtypes()) {
    AttentionOp op;
    op.ops = make(2);
    op.mask.causal = true;
    const std::vector<int32_t> queries = prefix_sums({1, 7, 0, 70, 3});
    const std::vector<int32_t> keys = prefix_sums({300, 7, 12, 200, 0});
    Matrix q = Matrix::random(queries.back(), 128, dtype, 51);
    Matrix k = Matrix::random(keys.back(), 128, dtype, 52);
    Matrix v = Matrix::random(keys.back(), 128, dtype, 53);
    Matrix out(queries.back(), 128, dtype);
    AttentionArgs args;
    args.q = q.view();
    args.k = k.view();
    args.v = v.view();
    args.out = out.view();
    args.queries = AttentionOp::batch_of(queries);
    args.keys = AttentionOp::batch_of(keys);
    const Matrix found = op.finish(args, out);
    for (size_t s = 0; s + 1 < queries.size(); ++s) {
      const int64_t nq = queries[s + 1] - queries[s], nk = keys[s + 1] - keys[s];
      Matrix part(nq, 128, dtype);
      part.set(columns_of(found, queries[s], nq, 0, 128));
      // The last sequence has queries and no keys: zeros.
      CHECK(close(
          part, op.expect(columns_of(q, queries[s], nq, 0, 128), columns_of(k, keys[s], nk, 0, 128),
                          columns_of(v, keys[s], nk, 0, 128), nq, nk)));
    }
  }
}

TEST(cpu_attention_bits_depend_on_the_sequence_alone) {
  for (DType dtype : dtypes()) {
    for (bool causal : {false, true}) {
      AttentionOp one, three;
      one.ops = make(1);
      three.ops = make(3);
      one.mask.causal = three.mask.causal = causal;
      for (int32_t length : {1, 2, 5, 16, 31, 64, 65, 128, 129, 200, 513}) {
        const Matrix sequence = Matrix::random(length, 384, dtype, 61);
        const Matrix alone = one.run(sequence, {0, length});
        for (int32_t before : {0, 1, 13, 64, 70}) {
          const std::vector<int32_t> cu_seqlens = prefix_sums({before, length, 3, 150});
          Matrix batch = Matrix::random(cu_seqlens.back(), 384, dtype, 62);
          for (int32_t i = 0; i < length; ++i) batch.copy_row(before + i, sequence, i);
          if (before > 0) batch.fill_row(before - 1, kNaN);
          batch.fill_row(before + length, kInf);
          batch.fill_row(before + length + 10, kNaN);
          for (AttentionOp* op : {&one, &three}) {
            CHECK(op->run(batch, cu_seqlens).same_rows(before, alone, 0, length));
          }
        }
      }
    }
  }
}

TEST(cpu_attention_lets_nan_through_within_a_sequence) {
  AttentionOp op;
  op.ops = make(1);
  Matrix qkv = Matrix::random(40, 384, DType::kFloat32, 63);
  qkv.fill_row(7, kNaN);
  for (float value : op.run(qkv, {0, 40}).values()) CHECK(std::isnan(value));
}

TEST(cpu_norm_matches_float64) {
  for (DType dtype : dtypes()) {
    const auto ops = make(2);
    for (NormKind kind : {NormKind::kLayer, NormKind::kRms}) {
      for (int64_t columns : {1, 7, 16, 76, 384, 1000}) {
        for (bool with_residual : {false, true}) {
          const Norm norm(columns, kind);
          Matrix x = Matrix::random(70, columns, dtype, 71);
          // A large mean: sums of squares would lose the variance.
          std::vector<float> shifted = x.values();
          for (float& value : shifted) value += 30.0f;
          x.set(shifted);
          Matrix residual = Matrix::random(70, columns, dtype, 72);
          const std::vector<float> values = x.values();
          std::vector<double> expected(values.begin(), values.end());
          if (with_residual) add(expected, residual.values());
          norm.apply(expected);
          NormArgs args;
          args.x = x.view();
          if (with_residual) args.residual = residual.view();
          args.norm = norm.view;
          args.out = x.view();
          ops->norm(args);
          CHECK(close(x, expected, 3.0));
        }
      }
    }
  }
}

TEST(cpu_embed_matches_float64) {
  const int64_t columns = 100, vocabulary = 50;
  const std::vector<int32_t> cu_seqlens = {0, 0, 3, 3, 50, 51, 51};
  std::vector<int32_t> ids(51), types(51), positions(51);
  for (int32_t i = 0; i < 51; ++i) {
    ids[size_t(i)] = i * 7 % 50;
    types[size_t(i)] = i % 2;
    positions[size_t(i)] = i * 3 % 60;
  }
  for (DType dtype : dtypes()) {
    const auto ops = make(2);
    Matrix word = Matrix::random(vocabulary, columns, dtype, 81);
    Matrix position = Matrix::random(62, columns, dtype, 82);
    Matrix type = Matrix::random(2, columns, dtype, 83);
    const Norm norm(columns);
    for (int option = 0; option < 4; ++option) {
      Matrix out(51, columns, dtype);
      EmbedArgs args;
      args.ids = ids.data();
      args.word = word.view();
      if (option >= 1) args.position = position.view();
      if (option >= 2) args.type = type.view();
      if (option >= 2) args.position_ids = positions.data();
      if (option == 3) args.type_ids = types.data();
      if (option != 2) args.norm = norm.view;
      args.position_offset = 2;
      args.batch = AttentionOp::batch_of(cu_seqlens);
      args.out = out.view();
      ops->embed(args);
      std::vector<double> expected;
      for (size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
        for (int32_t i = cu_seqlens[s]; i < cu_seqlens[s + 1]; ++i) {
          const int64_t at = 2 + (option >= 2 ? positions[size_t(i)] : i - cu_seqlens[s]);
          const std::vector<float> w = columns_of(word, ids[size_t(i)], 1, 0, columns);
          std::vector<double> row(w.begin(), w.end());
          if (option >= 1) add(row, columns_of(position, at, 1, 0, columns));
          if (option >= 2) {
            add(row, columns_of(type, option == 3 ? types[size_t(i)] : 0, 1, 0, columns));
          }
          expected.insert(expected.end(), row.begin(), row.end());
        }
      }
      if (option != 2) norm.apply(expected);
      CHECK(close(out, expected));
    }
  }
}

TEST(cpu_pool_matches_float64) {
  const std::vector<int32_t> lengths = {1, 0, 9, 200};
  const std::vector<int32_t> cu_seqlens = prefix_sums(lengths);
  const int64_t columns = 70;
  for (DType dtype : dtypes()) {
    for (DType out_dtype : {dtype, DType::kFloat32}) {
      const auto ops = make(2);
      Matrix x = Matrix::random(cu_seqlens.back(), columns, dtype, 95);
      const std::vector<float> values = x.values();
      for (Pooling pooling :
           {Pooling::kCls, Pooling::kMean, Pooling::kMax, Pooling::kLast, Pooling::kMeanSqrt}) {
        for (bool normalize : {false, true}) {
          std::vector<double> expected(lengths.size() * size_t(columns), 0.0);
          for (size_t s = 0; s < lengths.size(); ++s) {
            double squares = 0;
            double* row = &expected[s * size_t(columns)];
            for (int64_t c = 0; c < columns; ++c) {
              const auto at = [&](int32_t i) {
                return double(values[size_t((cu_seqlens[s] + i) * columns + c)]);
              };
              const int32_t n = lengths[s];
              if (n == 0) continue;
              double sum = 0, greatest = at(0);
              for (int32_t i = 0; i < n; ++i) {
                sum += at(i);
                greatest = std::max(greatest, at(i));
              }
              row[c] = pooling == Pooling::kCls    ? at(0)
                       : pooling == Pooling::kLast ? at(n - 1)
                       : pooling == Pooling::kMax  ? greatest
                       : pooling == Pooling::kMean ? sum / n
                                                   : sum / std::sqrt(double(n));
              squares += row[c] * row[c];
            }
            if (normalize && squares > 0) {
              for (int64_t c = 0; c < columns; ++c) row[c] /= std::sqrt(squares);
            }
          }
          Matrix out = Matrix::random(int64_t(lengths.size()), columns, out_dtype, 96);
          ops->pool({x.view(), AttentionOp::batch_of(cu_seqlens), pooling, normalize, out.view()});
          CHECK(close(out, expected));
        }
      }
    }
  }
}

TEST(cpu_cast_rounds_to_nearest_even) {
  if (dtypes().size() < 2) return;
  const auto ops = make(2);
  Matrix from = Matrix::random(40, 77, DType::kFloat32, 97);
  std::vector<float> values = from.values();
  values[0] = kNaN;
  values[1] = kInf;
  values[2] = 1.00390625f;  // halfway between two bfloat16
  values[3] = 1.01171875f;
  values[4] = -0.0f;
  values[5] = 3.4e38f;  // rounds to infinity
  from.set(values);
  Matrix to(40, 77, DType::kBFloat16);
  ops->cast({from.view(), to.view()});
  Matrix expected(40, 77, DType::kBFloat16);
  expected.set(values);
  CHECK(to.same_rows(0, expected, 0, 40));
  Matrix back(40, 77, DType::kFloat32);
  ops->cast({to.view(), back.view()});
  CHECK(std::isnan(back.values()[0]) && back.values()[1] == kInf && back.values()[5] == kInf);
  CHECK(back.values()[2] == 1.0f && back.values()[3] == 1.015625f);
}

TEST(cpu_empty_batch_is_legal) {
  const auto ops = make(2);
  const std::vector<int32_t> none = {0};
  FeedForwardOp op(2, 32, 64, DType::kFloat32);
  CHECK(op.run(Matrix(0, 32, DType::kFloat32)).rows == 0);
  AttentionOp attention;
  attention.ops = make(2);
  CHECK(attention.run(Matrix(0, 384, DType::kFloat32), none).rows == 0);
  CHECK(attention.run(Matrix(0, 384, DType::kFloat32), {0, 0, 0}).rows == 0);
}

TEST(cpu_memory_does_not_grow_with_shapes) {
  for (DType dtype : dtypes()) {
    FeedForwardOp feed_forward(3, 64, 192, dtype);
    AttentionOp attention;
    attention.ops = make(3);
    attention.heads = attention.kv_heads = 1;
    attention.head_dim = 16;
    const auto run = [&](int64_t rows) {
      const int32_t half = static_cast<int32_t>(rows / 2);
      feed_forward.run(Matrix(rows, 64, dtype));
      attention.run(Matrix(rows, 48, dtype), {0, half, static_cast<int32_t>(rows)});
    };
    for (int64_t rows = 1; rows < 200; ++rows) run(rows);
    const size_t before = mallinfo2().uordblks;
    for (int64_t rows = 1; rows < 2200; ++rows) run(rows);
    // Threads free some of each other's small blocks late: their caches hold a few.
    CHECK(mallinfo2().uordblks < before + 16384);
  }
}

TEST(cpu_refuses_dtypes_with_a_reason) {
  const auto ops = make(1);
  CHECK_THROWS_AS(RuntimeError, ops->check_dtype(DType::kFloat16), "use float32");
  CHECK_THROWS_AS(RuntimeError, ops->check_dtype(DType::kInt8), "int8");
  if (dtypes().size() < 2) {
    CHECK_THROWS_AS(RuntimeError, ops->check_dtype(DType::kBFloat16), "AVX512-BF16");
  }
}

TEST(cpu_allocate_is_aligned_and_names_what_lacks) {
  const auto ops = make(1);
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{5000}, size_t{5} << 20}) {
    const auto memory = ops->allocate(bytes);
    CHECK(memory->bytes() == bytes);
    CHECK(reinterpret_cast<uintptr_t>(memory->data()) % 256 == 0);
  }
  CHECK_THROWS_AS(OutOfMemory, ops->allocate(SIZE_MAX - 5), std::to_string(SIZE_MAX - 5));
}

TEST(thread_pool_calls_every_index_once) {
  for (int threads : {1, 2, 5}) {
    cpu::ThreadPool pool(threads, [] {});
    CHECK(pool.threads() == threads);
    for (int round = 0; round < 300; ++round) {
      std::vector<std::atomic<int>> calls(static_cast<size_t>(round));
      pool.parallel_for(round, [&](int64_t index, int worker) {
        calls[size_t(index)] += worker >= 0 && worker < threads ? 1 : 100;
      });
      for (const auto& count : calls) CHECK(count == 1);
    }
  }
  CHECK(cpu::ThreadPool(0, [] {}).threads() == cpu::available_cores());
  CHECK_THROWS_WITH(cpu::ThreadPool(-1, [] {}), "threads is -1");
}

TEST(thread_pool_carries_exceptions_and_goes_on) {
  cpu::ThreadPool pool(3, [] {});
  for (int round = 0; round < 50; ++round) {
    CHECK_THROWS_AS(RuntimeError,
                    pool.parallel_for(100,
                                      [&](int64_t index, int) {
                                        if (index == 40) throw RuntimeError("index 40");
                                      }),
                    "index 40");
    std::atomic<int> calls = 0;
    pool.parallel_for(100, [&](int64_t, int) { ++calls; });
    CHECK(calls == 100);
  }
}

TEST(cpu_use_after_fork_is_an_error_not_a_hang) {
  FeedForwardOp op(3, 32, 64, DType::kFloat32);
  const Matrix x = Matrix::random(100, 32, DType::kFloat32, 98);
  const Matrix before = op.run(x);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    int code = 1;
    try {
      op.run(x);
    } catch (const RuntimeError& error) {
      code = std::string(error.what()).find("fork") == std::string::npos ? 2 : 0;
    }
    op.ops.reset();  // must not wait for threads that are not there
    // A new one works.
    if (code == 0 && !FeedForwardOp(3, 32, 64, DType::kFloat32).run(x).same_rows(0, before, 0, 100))
      code = 3;
    _exit(code);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(op.run(x).same_rows(0, before, 0, 100));
}

}  // namespace
}  // namespace packhorse
