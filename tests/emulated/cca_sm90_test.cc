// Heads of compressed convolutional attention: the kernels by mma.sync and that by wgmma, against
// float64, and against each other, bit by bit.
#include <cstdlib>

#include "cuda/cca/cca.h"
#include "cuda/cca/sm90.h"
#include "emulated_stream.h"
#include "emulated_test.h"

namespace packhorse::cuda {
namespace {

using namespace packhorse::emulated_test;

struct Shape {
  int heads = 2, kv_heads = 1, head_dim = 128;
  int dims = 64;    // columns of a head that are rotated
  int delayed = 0;  // columns of values that are not delayed; 0: half of them
  bool first_values = true;
  int slots = 0;  // rows of the state in a page; 0: no state
};

/// Lengths in the batch, and with the tokens before it.
struct Texts {
  std::vector<int32_t> lengths;
  std::vector<int32_t> before = {};
  int rows_beyond = 0;  // rows that are planned past the last token
};

template <class T>
struct Case {
  Shape shape;
  int tokens = 0, planned = 0, pages_of_one = 0;
  int mixed, values, delayed, stride, out_stride;
  std::vector<int32_t> before;
  Array<int32_t> cu_seqlens, counts, kv_lens, table;
  Array<T> latents, grouped, state, out;
  Array<float> depthwise, depthwise_bias, grouped_bias, temperature, first_values, positions;
  Array<float> frequencies;
  std::vector<std::vector<T>> history;  // latents of the rows before the batch, by sequence

  static int sum(const std::vector<int32_t>& x) {
    int total = 0;
    for (const int one : x) total += one;
    return total;
  }
  static size_t size(int64_t rows, int64_t columns) { return static_cast<size_t>(rows * columns); }
  int state_columns() const { return mixed + values - delayed; }

  Case(const Shape& shape, const Texts& texts, unsigned seed)
      : shape(shape),
        tokens(sum(texts.lengths)),
        planned(tokens + texts.rows_beyond),
        mixed((shape.heads + shape.kv_heads) * shape.head_dim),
        values(shape.kv_heads * shape.head_dim),
        delayed(shape.delayed > 0 ? shape.delayed : values / 2),
        stride(mixed + values + 8),
        out_stride(mixed + values + 16),
        before(texts.before),
        cu_seqlens(texts.lengths.size() + 1),
        counts(2),
        kv_lens(texts.lengths.size()),
        table(texts.lengths.size() * 8),
        latents(size(planned, stride)),
        grouped(size(2 * mixed, shape.head_dim)),
        state(size(static_cast<int64_t>(texts.lengths.size()) * 8 * std::max(shape.slots, 1),
                   state_columns())),
        out(size(planned, out_stride)),
        depthwise(size(2, mixed)),
        depthwise_bias(size(1, mixed)),
        grouped_bias(size(1, mixed)),
        temperature(size(1, shape.kv_heads)),
        first_values(size(1, values)),
        positions(size(planned, 1)),
        frequencies(size(1, std::max(shape.dims / 2, 1))) {
    std::mt19937 random(seed);
    before.resize(texts.lengths.size());
    cu_seqlens[0] = 0;
    for (size_t b = 0; b < texts.lengths.size(); ++b) {
      cu_seqlens[b + 1] = cu_seqlens[b] + texts.lengths[b];
      kv_lens[b] = before[b] + texts.lengths[b];
      for (int i = 0; i < texts.lengths[b]; ++i) {
        positions[static_cast<size_t>(cu_seqlens[b] + i)] = static_cast<float>(before[b] + i);
      }
    }
    counts[0] = tokens;
    counts[1] = static_cast<int32_t>(texts.lengths.size());
    fill_normal(latents, random);
    fill_normal(grouped, random, 1 / std::sqrt(2.0 * shape.head_dim));
    fill_normal(depthwise, random, 0.7);
    fill_normal(depthwise_bias, random, 0.5);
    fill_normal(grouped_bias, random, 0.5);
    fill_normal(first_values, random);
    for (size_t i = 0; i < first_values.size(); ++i)
      first_values[i] = static_cast<float>(to_double(rounded<T>(first_values[i])));
    for (size_t i = 0; i < temperature.size(); ++i)
      temperature[i] = 0.5f + 0.3f * static_cast<float>(i);
    for (size_t j = 0; j < frequencies.size(); ++j)
      frequencies[j] = std::pow(0.9f, static_cast<float>(j));
    // Rows past the last token are NaN.
    for (size_t i = size(tokens, stride); i < latents.size(); ++i) latents[i] = rounded<T>(NAN);
    std::vector<int32_t> order(table.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
    std::shuffle(order.begin(), order.end(), random);
    for (size_t i = 0; i < order.size(); ++i) table[i] = order[i];
    std::normal_distribution<double> normal(0, 1);
    for (size_t b = 0; b < before.size(); ++b) {
      history.emplace_back(size(before[b], mixed + values));
      for (T& x : history[b]) x = rounded<T>(normal(random));
      for (int p = std::max(0, before[b] - shape.slots); p < before[b]; ++p) keep(b, p);
    }
  }

  /// Puts a token of before the batch into the state.
  void keep(size_t b, int position) {
    const int page = table[b * 8 + static_cast<size_t>(position / 64)];
    T* const to =
        &state[size(int64_t{page} * shape.slots + position % 64 % shape.slots, state_columns())];
    const T* const from = &history[b][size(position, mixed + values)];
    std::copy_n(from, mixed, to);
    std::copy_n(from + mixed + delayed, values - delayed, to + mixed);
  }

  CcaArgs args() {
    CcaArgs a;
    const DType dtype = kDType<T>;
    const auto view = [&](void* data, DType type, int64_t rows, int64_t columns,
                          int64_t row_stride) {
      return TensorView(data, type, rows, columns, row_stride);
    };
    a.latents = view(latents.data(), dtype, planned, mixed + values, stride);
    a.out = view(out.data(), dtype, planned, mixed + values, out_stride);
    a.grouped = view(grouped.data(), dtype, 2 * mixed, shape.head_dim, shape.head_dim);
    a.num_heads = shape.heads;
    a.num_kv_heads = shape.kv_heads;
    a.head_dim = a.model_dim = shape.head_dim;
    a.depthwise_width = a.grouped_width = 2;
    a.depthwise = depthwise.data();
    a.depthwise_bias = depthwise_bias.data();
    a.grouped_bias = grouped_bias.data();
    a.temperature = temperature.data();
    a.delayed_column = delayed;
    if (shape.first_values) a.first_values = first_values.data();
    if (shape.dims > 0) {
      a.rotation = view(positions.data(), DType::kFloat32, planned, 1, 1);
      a.frequencies = frequencies.data();
      a.dims = shape.dims;
    }
    if (shape.slots > 0) {
      a.pages.rows = view(state.data(), dtype, static_cast<int64_t>(state.size()) / state_columns(),
                          state_columns(), state_columns());
      a.pages.slots = shape.slots;
      a.pages.table = table.data();
      a.pages.table_stride = 8;
      a.pages.kv_lens = kv_lens.data();
    }
    // Sequences that are not there, too: counts say how many there are.
    a.batch = {planned, static_cast<int64_t>(kv_lens.size()) + (planned > tokens ? 3 : 0), planned,
               cu_seqlens.data(), planned > tokens ? counts.data() : nullptr};
    return a;
  }

  /// A latent of the token `position` tokens after the beginning of sequence b in the batch.
  double latent(size_t b, int position, int column) const {
    if (position >= 0)
      return to_double(
          latents[size(cu_seqlens[b] + position, stride) + static_cast<size_t>(column)]);
    if (shape.slots == 0 || before[b] + position < 0) return 0;
    return to_double(
        history[b][size(before[b] + position, mixed + values) + static_cast<size_t>(column)]);
  }

  void head(size_t b, int position, int h, double* result) const {
    const int d = shape.head_dim;
    const int group = shape.heads / shape.kv_heads;
    double squares = 0;
    std::vector<double> taps;
    for (int tap = 0; tap < 2; ++tap) {
      for (int c = h * d; c < (h + 1) * d; ++c) {
        const auto at = static_cast<size_t>(c);
        taps.push_back(depthwise_bias[at] + depthwise[at] * latent(b, position + tap - 2, c) +
                       depthwise[static_cast<size_t>(mixed + c)] *
                           latent(b, position + tap - 1, c));
      }
    }
    for (int c = 0; c < d; ++c) {
      double sum = grouped_bias[static_cast<size_t>(h * d + c)];
      for (int i = 0; i < 2 * d; ++i)
        sum += taps[static_cast<size_t>(i)] *
               to_double(grouped[size(h * 2 * d + i, d) + static_cast<size_t>(c)]);
      double mean = 0;
      const int first = h < shape.heads ? shape.heads + h / group : (h - shape.heads) * group;
      const int others = h < shape.heads ? 1 : group;
      for (int o = 0; o < others; ++o) mean += latent(b, position, (first + o) * d + c) / others;
      result[c] = sum + (latent(b, position, h * d + c) + mean) / 2;
      squares += result[c] * result[c];
    }
    const double factor =
        std::sqrt(d / squares) *
        (h < shape.heads ? 1.0f : temperature[static_cast<size_t>(h - shape.heads)]);
    for (int c = 0; c < d; ++c) result[c] *= factor;
    for (int c = 0; c < shape.dims; c += 2) {
      const double angle =
          static_cast<float>(before[b] + position) * frequencies[static_cast<size_t>(c / 2)];
      const double x = result[c], y = result[c + 1];
      result[c] = x * std::cos(angle) - y * std::sin(angle);
      result[c + 1] = y * std::cos(angle) + x * std::sin(angle);
    }
  }

  /// The largest error of a result; infinite where values are not what they must be, exactly.
  double error() const {
    double most = 0;
    std::vector<double> expected(static_cast<size_t>(shape.head_dim));
    for (size_t b = 0; b < before.size(); ++b) {
      for (int i = 0; i < cu_seqlens[b + 1] - cu_seqlens[b]; ++i) {
        const T* const found = &out[size(cu_seqlens[b] + i, out_stride)];
        for (int h = 0; h < shape.heads + shape.kv_heads; ++h) {
          head(b, i, h, expected.data());
          for (int c = 0; c < shape.head_dim; ++c) {
            const double difference = std::abs(to_double(found[h * shape.head_dim + c]) -
                                               expected[static_cast<size_t>(c)]);
            most = difference >= 0 ? std::max(most, difference) : INFINITY;
          }
        }
        for (int c = 0; c < values; ++c) {
          const bool starts = i == 0 && (shape.slots == 0 || before[b] == 0);
          const double x = c < delayed          ? latent(b, i, mixed + c)
                           : !starts            ? latent(b, i - 1, mixed + c)
                           : shape.first_values ? first_values[static_cast<size_t>(c)]
                                                : 0.0;
          if (to_double(found[mixed + c]) != x) most = INFINITY;
        }
      }
    }
    return most;
  }
};

/// Both kernels for many rows, which must leave alone what is past the last token.
template <class T>
void check(const Shape& shape, const Texts& texts, int sm_count, unsigned seed) {
  emulated::set_seed(seed);
  Case<T> one(shape, texts, seed);
  launch_cca_sm90(one.args(), emulated_stream(sm_count));
  CHECK_WITHIN(one.error(), 16 * kEpsilon<T>);
  Array<T> hopper(one.out.size());
  std::memcpy(hopper.data(), one.out.data(), hopper.size() * sizeof(T));
  one.out.fill_bytes(0xff);
  launch_cca(one.args(), false, emulated_stream(sm_count));
  CHECK(one.out.same_bits(hopper));
}

TEST(convolve_many_tiles) {
  const Texts texts{{700, 1, 2, 33, 0, 260, 64, 31, 0, 129, 0}};
  for (unsigned seed = 0; seed < 9; ++seed) check<__nv_bfloat16>({}, texts, 4, seed);
}

TEST(convolve_long_rings) {
  for (unsigned seed = 0; seed < 9; ++seed)
    check<__half>({.heads = 1, .head_dim = 64}, {{1500, 3, 211}}, 1, seed);
}

TEST(cca_of_64) {
  for (unsigned seed = 0; seed < 9; ++seed) {
    check<__half>({.heads = 4, .kv_heads = 2, .head_dim = 64, .dims = 20}, {{400, 1, 77, 2, 2, 1}},
                  9, seed);
  }
}

TEST(convolve_more_heads_than_stages) {
  for (unsigned seed = 0; seed < 9; ++seed) {
    check<__nv_bfloat16>({.heads = 7, .dims = 128, .first_values = false}, {{90, 100}}, 132, seed);
    check<__nv_bfloat16>({.heads = 9, .head_dim = 64, .dims = 64}, {{90, 160}}, 3, seed);
  }
}

TEST(convolve_state) {
  for (unsigned seed = 0; seed < 9; ++seed) {
    check<__half>({.dims = 6, .slots = 2},
                  {{64, 1, 2, 70, 1, 3, 200, 1, 1}, {0, 5, 1, 63, 64, 65, 129, 2, 300}}, 4, seed);
    check<__nv_bfloat16>(
        {.heads = 2, .kv_heads = 2, .head_dim = 64, .dims = 0, .delayed = 8, .slots = 7},
        {{1, 150, 2, 70}, {1, 0, 2, 190}}, 5, seed);
  }
}

TEST(convolve_counts_on_the_device) {
  for (unsigned seed = 0; seed < 9; ++seed) check<__half>({}, {{65, 20}, {}, 300}, 7, seed);
}

TEST(convolve_odd_totals) {
  std::mt19937 random(1);
  for (unsigned seed = 0; seed < 18; ++seed) {
    std::vector<int32_t> lengths = {130};
    for (int i = 0; i < 12; ++i)
      lengths.push_back(std::uniform_int_distribution<int32_t>(0, i % 3 == 0 ? 40 : 3)(random));
    check<__nv_bfloat16>({.heads = 1, .head_dim = seed % 2 == 0 ? 128 : 64}, {lengths}, 3, seed);
  }
}

/// NaN in one sequence leaves the bits of all others alone.
TEST(convolve_neighbours_of_nan) {
  for (unsigned seed = 0; seed < 9; ++seed) {
    emulated::set_seed(seed);
    const Texts texts{{70, 5, 90, 1, 30}};
    Case<__half> one({}, texts, seed);
    launch_cca_sm90(one.args(), emulated_stream());
    Array<__half> clean(one.out.size());
    std::memcpy(clean.data(), one.out.data(), clean.size() * sizeof(__half));
    const auto row = [&](int token) {
      return static_cast<size_t>(token) * static_cast<size_t>(one.stride);
    };
    for (size_t i = row(70); i < row(75); ++i) one.latents[i] = rounded<__half>(NAN);
    one.out.fill_bytes(0xff);
    launch_cca_sm90(one.args(), emulated_stream());
    for (int token = 0; token < one.tokens; ++token) {
      const size_t at = static_cast<size_t>(token) * static_cast<size_t>(one.out_stride);
      const bool same = std::memcmp(&one.out[at], &clean[at],
                                    static_cast<size_t>(one.mixed + one.values) * 2) == 0;
      CHECK(same == (token < 70 || token >= 75));
    }
  }
}

}  // namespace
}  // namespace packhorse::cuda
