// Helpers for the tests of the CPU backend: matrices of any dtype, and references in float64.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iostream>
#include <limits>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "core/float_convert.h"
#include "cpu/cpu_backend.h"
#include "packhorse/error.h"
#include "test.h"

namespace packhorse::cpu_test {

inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInf = std::numeric_limits<float>::infinity();

// A backend whose operators are reached by `->`.
struct CpuBackend : Backend {
  Ops* operator->() const { return ops.get(); }
};

inline CpuBackend make(int threads) { return {make_cpu_backend({threads})}; }

// The dtypes of rows.
inline std::vector<DType> dtypes() { return {DType::kFloat32, DType::kBFloat16}; }

// The dtypes in which this processor multiplies rows and weights.
inline std::vector<DType> dense_dtypes() {
  std::vector<DType> result = dtypes();
  const auto ops = make(1);
  std::erase_if(result, [&](DType dtype) { return ops.packer->format(dtype).compute != dtype; });
  return result;
}

// The dtypes of weights that it converts to float32.
inline std::vector<DType> widened_dtypes() {
  std::vector<DType> result = {DType::kBFloat16, DType::kFloat16};
  const auto ops = make(1);
  std::erase_if(result, [&](DType dtype) { return ops.packer->format(dtype).compute == dtype; });
  return result;
}

// Runs an operator with the workspace that it asks for.
inline void linear(const CpuBackend& ops, LinearArgs args) {
  std::vector<std::byte> workspace(ops->linear_workspace(args));
  args.workspace = workspace.data();
  ops->linear(args);
}

inline void feed_forward(const CpuBackend& ops, FeedForwardArgs args) {
  std::vector<std::byte> workspace(ops->feed_forward_workspace(args));
  args.workspace = workspace.data();
  ops->feed_forward(args);
}

// A matrix in the dtype under test. `values` returns its numbers after rounding to that dtype.
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
    const size_t bytes = static_cast<size_t>(count) * row_bytes();
    return std::equal(row(first), row(first) + bytes, other.row(other_first));
  }
  TensorView view() { return TensorView(bytes.data(), dtype, rows, columns); }

  int64_t rows = 0, columns = 0;
  DType dtype = DType::kFloat32;
  std::vector<std::byte> bytes;
};

// Returns whether the largest |found - expected| is small relative to the dtype's precision and to
// the size of the values.
inline bool close(const Matrix& found, const std::vector<double>& expected,
                  double tolerance = 1.0) {
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

inline double activate(Activation activation, double x) {
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

// The sum of the products of a[i] and b[i * stride_b], in float64. It is the inner loop of all
// references, which takes most of their time where it is sanitized.
template <class T, class U>
[[gnu::no_sanitize("address", "undefined")]] double dot(const T* a, const U* b, int64_t n,
                                                        int64_t stride_b = 1) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += double(a[i]) * double(b[i * stride_b]);
  return sum;
}

// A dense layer in float64: rows x [rows, in], weight [out, in], bias [out].
template <class T, class U>
std::vector<double> dense_of(const std::vector<T>& x, const std::vector<U>& weight,
                             const std::vector<float>& bias, Activation activation) {
  const size_t out = bias.size(), in = weight.size() / out;
  std::vector<double> result;
  result.reserve(x.size() / in * out);
  for (size_t row = 0; row < x.size(); row += in) {
    for (size_t j = 0; j < out; ++j) {
      const double sum = double(bias[j]) + dot(&x[row], &weight[j * in], int64_t(in));
      result.push_back(activate(activation, sum));
    }
  }
  return result;
}

// A dense layer packed for the device, with the weight and bias that it was made from.
struct Dense {
  Dense(LinearPacker& packer, int64_t in, int64_t out, DType dtype, unsigned seed,
        bool with_bias = true)
      : in(in),
        out(out),
        weight(Matrix::random(out, in, dtype, seed, 1 / std::sqrt(float(in))).values()),
        bias(Matrix::random(1, out, DType::kFloat32, seed + 1).values()),
        packed(packer.bytes(in, out, packer.format(dtype))) {
    packer.pack(weight.data(), in, out, packer.format(dtype), packed.data());
    view = {in, out, dtype, packed.data(), with_bias ? bias.data() : nullptr};
    if (!with_bias) std::fill(bias.begin(), bias.end(), 0.0f);
  }
  // A layer of given weights; without biases it has none.
  Dense(LinearPacker& packer, std::vector<float> weights, std::vector<float> biases, int64_t in,
        DType dtype = DType::kFloat32)
      : in(in),
        out(static_cast<int64_t>(weights.size()) / in),
        weight(std::move(weights)),
        bias(std::move(biases)),
        packed(packer.bytes(in, out, packer.format(dtype))) {
    packer.pack(weight.data(), in, out, packer.format(dtype), packed.data());
    view = {in, out, dtype, packed.data(), bias.empty() ? nullptr : bias.data()};
  }
  template <class T>
  std::vector<double> apply(const std::vector<T>& x, Activation activation) const {
    return dense_of(x, weight, bias, activation);
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

inline void add(std::vector<double>& x, const std::vector<float>& y) {
  for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

inline std::vector<float> columns_of(const Matrix& matrix, int64_t row, int64_t rows, int64_t first,
                                     int64_t count) {
  const std::vector<float> values = matrix.values();
  std::vector<float> result(static_cast<size_t>(rows * count));
  for (int64_t i = 0; i < rows; ++i) {
    std::copy_n(values.begin() + (row + i) * matrix.columns + first, count,
                result.begin() + i * count);
  }
  return result;
}

inline std::vector<int32_t> prefix_sums(const std::vector<int32_t>& lengths) {
  std::vector<int32_t> sums = {0};
  for (int32_t length : lengths) sums.push_back(sums.back() + length);
  return sums;
}

inline BatchView batch_of(const std::vector<int32_t>& cu_seqlens) {
  BatchView batch;
  batch.num_sequences = static_cast<int64_t>(cu_seqlens.size()) - 1;
  batch.num_tokens = cu_seqlens.back();
  batch.cu_seqlens = cu_seqlens.data();
  for (size_t i = 1; i < cu_seqlens.size(); ++i) {
    batch.max_seqlen = std::max<int64_t>(batch.max_seqlen, cu_seqlens[i] - cu_seqlens[i - 1]);
  }
  return batch;
}

struct FeedForwardOp {
  FeedForwardOp(int threads, int64_t hidden, int64_t intermediate, DType dtype,
                Activation activation = Activation::kGelu)
      : ops(make(threads)),
        up(*ops.packer, hidden, intermediate, dtype, 5),
        down(*ops.packer, intermediate, hidden, dtype, 7),
        norm(hidden),
        activation(activation) {}
  Matrix run(Matrix x) {
    FeedForwardArgs args;
    args.x = x.view();
    args.up = up.view;
    args.down = down.view;
    args.activation = activation;
    args.residual = x.view();  // in place, as in the encoder
    args.norm = norm.view;
    args.out = x.view();
    feed_forward(ops, args);
    return x;
  }
  CpuBackend ops;
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
    std::vector<std::byte> workspace(ops->attention_workspace(args));
    args.workspace = workspace.data();
    ops->attention(args);
    return out;
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
  // The reference for one sequence: q [nq, H d], k and v [nk, Hkv d], all contiguous.
  std::vector<double> expect(const std::vector<float>& q, const std::vector<float>& k,
                             const std::vector<float>& v, int64_t nq, int64_t nk) const {
    std::vector<double> out(static_cast<size_t>(nq * heads * head_dim));
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t g = h / (heads / kv_heads);
      for (int64_t i = 0; i < nq; ++i) {
        const int64_t position = nk - nq + i;
        std::vector<double> weights(static_cast<size_t>(nk), -INFINITY);
        double greatest = -INFINITY, sum = 0;
        for (int64_t j = 0; j < nk; ++j) {
          if (mask.causal && j > position) continue;
          if (mask.window_left >= 0 && j < position - mask.window_left) continue;
          if (mask.window_right >= 0 && j > position + mask.window_right) continue;
          const double score = dot(&q[size_t((i * heads + h) * head_dim)],
                                   &k[size_t((j * kv_heads + g) * head_dim)], head_dim);
          weights[size_t(j)] = score * double(0.3f) + bias(h, j - position);
          greatest = std::max(greatest, weights[size_t(j)]);
        }
        for (double& weight : weights) sum += weight = std::exp(weight - greatest);
        for (int64_t c = 0; c < head_dim && sum > 0; ++c) {
          const double value =
              dot(weights.data(), &v[size_t(g * head_dim + c)], nk, int64_t{kv_heads} * head_dim);
          out[size_t((i * heads + h) * head_dim + c)] = value / sum;
        }
      }
    }
    return out;
  }
  CpuBackend ops;
  int32_t heads = 4, kv_heads = 4, head_dim = 32;
  AttentionMask mask = {};
  ScoreTerm term = {};
};

}  // namespace packhorse::cpu_test
