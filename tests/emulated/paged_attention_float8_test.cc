// Pages in e4m3: what is appended to them, beside what the host's quantize_float8 makes of the same
// rows; and attention by the kernel for prompts and that for few rows, beside float64 over the
// numbers that pages hold, and beside each other, bit by bit.
#include <utility>

#include "core/float8.h"
#include "cuda/attention/paged/paged.h"
#include "cuda/rowwise/rowwise.h"
#include "emulated_stream.h"
#include "emulated_test.h"

namespace packhorse::cuda {
namespace {

using namespace packhorse::emulated_test;

struct Shape {
  int heads, kv_heads, head_dim;
  int window = -1;  // keys to the left that a query sees
  float soft_cap = 0;
  bool alibi = false;
  bool buckets = false;
};

/// Tokens of each text that a step brings: from a position on, so many.
using Step = std::vector<std::pair<int, int>>;

enum class Kernel : uint8_t { kPrompts, kSkinnyRows, kSkinnyRowsSplit };
constexpr Kernel kKernels[] = {Kernel::kPrompts, Kernel::kSkinnyRows, Kernel::kSkinnyRowsSplit};

size_t product(int64_t a, int64_t b, int64_t c = 1, int64_t d = 1) {
  return static_cast<size_t>(a * b * c * d);
}

/// Texts of random queries, keys and values, and a cache for them: pages in random order, which
/// hold NaN and scales of NaN where nothing has been appended.
template <class T>
struct Texts {
  Shape shape;
  std::vector<int> lengths;
  int table_stride = 0;
  int num_pages = 0;
  std::vector<std::vector<T>> q, k, v;  // [length, heads, d] of each text
  Array<uint8_t> keys, values;
  Array<float> key_scales, value_scales, slopes, numbers, workspace{1 << 18};
  Array<int32_t> table;
  Array<unsigned> counters{static_cast<size_t>(kPagedCounters)};

  Texts(const Shape& shape, const std::vector<int>& lengths, unsigned seed, int order)
      : shape(shape),
        lengths(lengths),
        table_stride(static_cast<int>(
            (*std::max_element(lengths.begin(), lengths.end()) + kPageTokens - 1) / kPageTokens)),
        num_pages(table_stride * static_cast<int>(lengths.size()) + 2),
        keys(product(num_pages, shape.kv_heads, kPageTokens, shape.head_dim)),
        values(keys.size()),
        key_scales(product(num_pages, shape.kv_heads, kPageTokens)),
        value_scales(key_scales.size()),
        slopes(static_cast<size_t>(shape.heads)),
        numbers(bucket_bias(shape.heads)),
        table(product(table_stride, static_cast<int64_t>(lengths.size()))) {
    std::mt19937 random(seed);
    for (const int length : lengths) {
      const auto normal = [&](int heads) {
        std::normal_distribution<double> number;
        std::vector<T> rows(product(length, heads, shape.head_dim));
        for (T& x : rows) x = rounded<T>(number(random));
        return rows;
      };
      q.push_back(normal(shape.heads));
      k.push_back(normal(shape.kv_heads));
      v.push_back(normal(shape.kv_heads));
    }
    keys.fill_bytes(0xff);
    values.fill_bytes(0xff);
    counters.fill_bytes(0);
    std::vector<int32_t> places(static_cast<size_t>(num_pages));
    for (size_t i = 0; i < places.size(); ++i) places[i] = static_cast<int32_t>(i);
    std::mt19937 dealing(static_cast<unsigned>(order));
    std::shuffle(places.begin(), places.end(), dealing);
    for (size_t i = 0; i < table.size(); ++i) table[i] = places[i];
    for (size_t h = 0; h < slopes.size(); ++h) slopes[h] = 0.1f * static_cast<float>(h + 1);
  }

  /// The row of the pages of a token's head.
  size_t row_of(size_t text, int position, int head) const {
    const int page =
        table[text * static_cast<size_t>(table_stride) + static_cast<size_t>(position / 64)];
    return product(page * shape.kv_heads + head, kPageTokens) + static_cast<size_t>(position % 64);
  }

  /// The rows of a step's tokens, side by side.
  std::vector<T> packed(const std::vector<std::vector<T>>& rows, int heads,
                        const Step& step) const {
    const auto columns = static_cast<int64_t>(heads) * shape.head_dim;
    std::vector<T> result;
    for (size_t b = 0; b < step.size(); ++b) {
      const auto from = rows[b].begin() + step[b].first * columns;
      result.insert(result.end(), from, from + step[b].second * columns);
    }
    return result;
  }
  static Array<int32_t> bounds(const Step& step) {
    std::vector<int32_t> result{0};
    for (const auto& [first, count] : step) result.push_back(result.back() + count);
    return Array<int32_t>(result);
  }
  static Array<int32_t> lengths_after(const Step& step) {
    std::vector<int32_t> result;
    for (const auto& [first, count] : step) result.push_back(first + count);
    return Array<int32_t>(result);
  }

  PagedKvCache pages() {
    const auto rows = static_cast<int64_t>(key_scales.size());
    return {.keys = {keys.data(), DType::kFloat8, rows, shape.head_dim},
            .values = {values.data(), DType::kFloat8, rows, shape.head_dim},
            .key_scales = {key_scales.data(), DType::kFloat32, rows / kPageTokens, 64},
            .value_scales = {value_scales.data(), DType::kFloat32, rows / kPageTokens, 64},
            .table = table.data(),
            .table_stride = table_stride};
  }

  void append(const Step& step) {
    Array<T> k_rows(packed(k, shape.kv_heads, step)), v_rows(packed(v, shape.kv_heads, step));
    const Array<int32_t> begins = bounds(step), kv_lens = lengths_after(step);
    const int64_t tokens = begins[step.size()];
    const int64_t columns = int64_t{shape.kv_heads} * shape.head_dim;
    AppendKvCacheArgs args;
    args.k = {k_rows.data(), kDType<T>, tokens, columns};
    args.v = {v_rows.data(), kDType<T>, tokens, columns};
    args.pages = pages();
    args.pages.kv_lens = kv_lens.data();
    args.batch = {.num_tokens = tokens,
                  .num_sequences = static_cast<int64_t>(step.size()),
                  .cu_seqlens = begins.data()};
    args.num_kv_heads = shape.kv_heads;
    args.head_dim = shape.head_dim;
    launch_append_kv_cache(args, emulated_stream());
  }

  /// Rows of the step's queries, whose keys have been appended.
  std::vector<T> attend(const Step& step, Kernel kernel) {
    Array<T> rows(packed(q, shape.heads, step));
    Array<T> out(rows.size());
    const Array<int32_t> begins = bounds(step), kv_lens = lengths_after(step);
    AttentionArgs p;
    const int64_t tokens = begins[step.size()], columns = shape.heads * shape.head_dim;
    p.q = {rows.data(), kDType<T>, tokens, columns};
    p.out = {out.data(), kDType<T>, tokens, columns};
    p.queries = {.num_tokens = tokens,
                 .num_sequences = static_cast<int64_t>(step.size()),
                 .cu_seqlens = begins.data()};
    p.pages = pages();
    p.pages.kv_lens = kv_lens.data();
    for (size_t b = 0; b < step.size(); ++b) {
      p.queries.max_seqlen = std::max<int64_t>(p.queries.max_seqlen, step[b].second);
      p.pages.max_kv_len = std::max<int64_t>(p.pages.max_kv_len, kv_lens[b]);
    }
    p.num_heads = shape.heads;
    p.num_kv_heads = shape.kv_heads;
    p.head_dim = shape.head_dim;
    p.scale = 1 / std::sqrt(static_cast<float>(shape.head_dim));
    p.soft_cap = shape.soft_cap;
    p.mask = {.causal = true, .window_left = shape.window};
    if (shape.alibi) {
      p.term.kind = ScoreTermKind::kAlibi;
      p.term.slopes = slopes.data();
    }
    if (shape.buckets) {
      p.term.kind = ScoreTermKind::kBucketed;
      p.term.by_distance = numbers.data();
      p.term.max_distance = kMostDistance;
    }
    PagedLaunch how = {.counters = counters.data()};
    if (kernel == Kernel::kSkinnyRowsSplit) {
      p.workspace = workspace.data();
      how.workspace_bytes = workspace.size() * sizeof(float);
    }
    const int sm_count = kernel == Kernel::kPrompts ? 1 : 1000;  // which makes the choice
    launch_attention_pages(p, how, emulated_stream(sm_count));
    return {out.data(), out.data() + out.size()};
  }

  /// A text's keys or values as a cache in e4m3 has them.
  std::vector<double> as_cached(const std::vector<T>& rows) const {
    std::vector<float> floats(rows.size());
    for (size_t i = 0; i < rows.size(); ++i) floats[i] = static_cast<float>(to_double(rows[i]));
    std::vector<uint8_t> bytes(rows.size());
    const auto d = static_cast<size_t>(shape.head_dim);
    std::vector<float> scales(rows.size() / d);
    quantize_float8(floats.data(), static_cast<int64_t>(scales.size()), shape.head_dim,
                    bytes.data(), scales.data());
    std::vector<double> result(rows.size());
    for (size_t i = 0; i < rows.size(); ++i)
      result[i] = static_cast<double>(float8_to_float32(bytes[i])) * scales[i / d];
    return result;
  }

  std::vector<double> reference(const Step& step) const {
    std::vector<double> result;
    const auto d = static_cast<size_t>(shape.head_dim);
    for (size_t b = 0; b < step.size(); ++b) {
      const std::vector<double> text_keys = as_cached(k[b]), text_values = as_cached(v[b]);
      for (int position = step[b].first; position < step[b].first + step[b].second; ++position) {
        for (int h = 0; h < shape.heads; ++h) {
          const int kv = h / (shape.heads / shape.kv_heads);
          const auto at = [&](int j) { return product(j * shape.kv_heads + kv, shape.head_dim); };
          const size_t query = product(position * shape.heads + h, shape.head_dim);
          const int first = shape.window < 0 ? 0 : std::max(0, position - shape.window);
          std::vector<double> weights;
          double maximum = -INFINITY, sum = 0;
          for (int j = first; j <= position; ++j) {
            double score = 0;
            for (size_t c = 0; c < d; ++c)
              score += to_double(q[b][query + c]) * text_keys[at(j) + c];
            score /= std::sqrt(static_cast<double>(d));
            if (shape.soft_cap != 0) score = shape.soft_cap * std::tanh(score / shape.soft_cap);
            if (shape.alibi) score -= slopes[static_cast<size_t>(h)] * (position - j);
            if (shape.buckets) score += bucket_number(numbers, h, position - j);
            weights.push_back(score);
            maximum = std::max(maximum, score);
          }
          for (double& weight : weights) sum += weight = std::exp(weight - maximum);
          std::vector<double> row(d);
          for (int j = first; j <= position; ++j) {
            for (size_t c = 0; c < d; ++c)
              row[c] += weights[static_cast<size_t>(j - first)] / sum * text_values[at(j) + c];
          }
          result.insert(result.end(), row.begin(), row.end());
        }
      }
    }
    return result;
  }
};

template <class T>
void check_appended(int kv_heads, int head_dim, unsigned seed) {
  emulated::set_seed(seed);
  const std::vector<int> lengths{70, 1, 0, 65};
  Texts<T> texts({kv_heads, kv_heads, head_dim}, lengths, seed, static_cast<int>(seed));
  const auto head = [&](std::vector<T>& rows, int position, int number) {
    return rows.data() + product(position * kv_heads + number, head_dim);
  };
  const int last = head_dim - 1;
  for (int c = 0; c < head_dim; ++c) {
    head(texts.k[0], 65, 0)[c] = rounded<T>(0);
    head(texts.v[0], 65, 0)[c] = rounded<T>(std::pow(2.0, -c) * (c % 2 == 0 ? 448 : -448));
    head(texts.k[0], 66, 0)[c] = rounded<T>(60000.0 / (c + 1));
    head(texts.v[0], 66, 0)[c] = rounded<T>(0x1p-24 * (c + 1));
    head(texts.k[3], 1, 0)[c] = rounded<T>(0x1p-70 * (c + 1));  // zeros in float16
  }
  head(texts.k[1], 0, 0)[last] = rounded<T>(INFINITY);
  head(texts.v[3], 64, kv_heads - 1)[0] = rounded<T>(NAN);
  // Two steps, of which the first leaves page borders and a text to the second.
  texts.append({{0, 64}, {0, 0}, {0, 0}, {0, 63}});
  texts.append({{64, 6}, {0, 1}, {0, 0}, {63, 2}});

  Array<uint8_t> keys(texts.keys.size()), values(texts.values.size());
  Array<float> key_scales(texts.key_scales.size()), value_scales(texts.value_scales.size());
  keys.fill_bytes(0xff);
  values.fill_bytes(0xff);
  int spoiled = 0;
  for (size_t b = 0; b < lengths.size(); ++b) {
    for (int position = 0; position < lengths[b]; ++position) {
      for (int h = 0; h < kv_heads; ++h) {
        const size_t row = texts.row_of(b, position, h);
        const size_t at = row * static_cast<size_t>(head_dim);
        for (const bool of_keys : {true, false}) {
          const T* from = head(of_keys ? texts.k[b] : texts.v[b], position, h);
          std::vector<float> numbers(static_cast<size_t>(head_dim));
          bool finite = true;
          for (size_t c = 0; c < numbers.size(); ++c) {
            numbers[c] = static_cast<float>(to_double(from[c]));
            finite = finite && std::isfinite(numbers[c]);
          }
          uint8_t* to = (of_keys ? keys : values).data() + at;
          float& scale = (of_keys ? key_scales : value_scales)[row];
          const float found = (of_keys ? texts.key_scales : texts.value_scales)[row];
          if (finite) {
            quantize_float8(numbers.data(), 1, head_dim, to, &scale);
          } else {  // a scale of NaN, whatever the bytes are
            ++spoiled;
            CHECK(std::isnan(found));
            scale = found;
            std::memcpy(to, (of_keys ? texts.keys : texts.values).data() + at,
                        static_cast<size_t>(head_dim));
          }
        }
      }
    }
  }
  CHECK(spoiled == 2);
  CHECK(texts.keys.same_bits(keys));
  CHECK(texts.values.same_bits(values));
  CHECK(texts.key_scales.same_bits(key_scales));
  CHECK(texts.value_scales.same_bits(value_scales));
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b, size_t first_of_b = 0) {
  return first_of_b + a.size() <= b.size() &&
         std::memcmp(a.data(), b.data() + first_of_b, a.size() * sizeof(T)) == 0;
}

/// A step by every kernel.
template <class T>
void check(const Shape& shape, const Step& step, unsigned seed) {
  emulated::set_seed(seed);
  std::vector<int> lengths;
  Step old;
  for (const auto& [first, count] : step) {
    lengths.push_back(first + count);
    old.emplace_back(0, first);
  }
  Texts<T> texts(shape, lengths, seed, static_cast<int>(seed));
  texts.append(old);
  texts.append(step);
  const std::vector<double> expected = texts.reference(step);
  const std::vector<T> prompts = texts.attend(step, Kernel::kPrompts);
  CHECK_WITHIN(error_of(Array<T>(prompts), expected), 8 * kEpsilon<T>);
  CHECK(same_bits(texts.attend(step, Kernel::kSkinnyRows), prompts));
  CHECK(same_bits(texts.attend(step, Kernel::kSkinnyRowsSplit), prompts));
}

/// Numbers far outside float16's range, in which queries, probabilities and values are multiplied:
/// large queries of small keys, and values whose tokens differ by powers of two.
void check_magnitudes(unsigned seed) {
  using T = __nv_bfloat16;
  emulated::set_seed(seed);
  const Shape shape{4, 2, 64};
  const Step step{{65, 5}, {130, 1}};
  Texts<T> texts(shape, {70, 131}, seed, static_cast<int>(seed));
  const auto scale = [](std::vector<T>& rows, size_t columns, auto exponent) {
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i] = rounded<T>(std::ldexp(to_double(rows[i]), exponent(i / columns)));
    }
  };
  for (size_t b = 0; b < 2; ++b) {
    scale(texts.q[b], 64, [](size_t row) { return row % 3 == 0 ? 62 : 60; });
    scale(texts.k[b], 64, [](size_t) { return -60; });
    scale(texts.v[b], 128, [](size_t token) { return static_cast<int>(token % 30) - 90; });
  }
  texts.append({{0, 65}, {0, 130}});
  texts.append(step);
  std::vector<double> expected = texts.reference(step);
  for (double& number : expected) number = std::ldexp(number, 62);
  const std::vector<T> prompts = texts.attend(step, Kernel::kPrompts);
  std::vector<T> found = prompts;
  scale(found, found.size(), [](size_t) { return 62; });
  CHECK_WITHIN(error_of(Array<T>(found), expected), 8 * kEpsilon<T>);
  CHECK(same_bits(texts.attend(step, Kernel::kSkinnyRows), prompts));
  CHECK(same_bits(texts.attend(step, Kernel::kSkinnyRowsSplit), prompts));
}

/// A text at once, and cut into steps that it shares with others, whose pages lie elsewhere.
template <class T>
void check_cuts(const Shape& shape, unsigned seed) {
  emulated::set_seed(seed);
  const int length = 200;
  Texts<T> alone(shape, {length}, seed, 0);
  alone.append({{0, length}});
  const std::vector<T> whole = alone.attend({{0, length}}, Kernel::kPrompts);
  const size_t columns = product(shape.heads, shape.head_dim);

  Texts<T> shared(shape, {length, 90}, seed, 1);
  int position = 0;
  int neighbour = 0;
  for (size_t i = 0; position < length; ++i) {
    const int counts[] = {1, 62, 1, 1, 3, 60, 1, 17, 46, 8};
    const int count = counts[i % std::size(counts)];
    const Step step{{position, count}, {neighbour, neighbour < 85 ? static_cast<int>(i) : 0}};
    shared.append(step);
    std::vector<T> found = shared.attend(step, kKernels[(i + seed) % std::size(kKernels)]);
    found.resize(static_cast<size_t>(count) * columns);  // the neighbour's rows follow
    CHECK(same_bits(found, whole, static_cast<size_t>(position) * columns));
    position += count;
    neighbour += step[1].second;
  }
}

/// The first token of a text sees its own value alone: what comes out is what the page's bytes
/// mean.
template <class T>
void check_every_number(unsigned seed) {
  emulated::set_seed(seed);
  Texts<T> texts({1, 1, 256}, {40}, seed, 0);
  std::vector<double> expected(256);
  size_t column = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const float number = float8_to_float32(static_cast<uint8_t>(byte));
    if (std::isnan(number)) continue;
    texts.v[0][column] = rounded<T>(number);
    expected[column++] = number;
  }
  for (; column < 256; ++column) texts.v[0][column] = T{};
  texts.append({{0, 40}});
  for (const Kernel kernel : kKernels) {
    const std::vector<T> found = texts.attend({{0, 40}}, kernel);
    for (size_t c = 0; c < 256; ++c) CHECK(to_double(found[c]) == expected[c]);
  }
}

TEST(pages_float8_every_number) {
  check_every_number<__half>(0);
  check_every_number<__nv_bfloat16>(1);
}

TEST(pages_float8_append) {
  for (const int head_dim : {8, 40, 64, 72, 128, 256}) {
    check_appended<__half>(3, head_dim, static_cast<unsigned>(head_dim));
    check_appended<__nv_bfloat16>(1, head_dim, static_cast<unsigned>(head_dim));
  }
}

TEST(pages_float8_heads_of_64) {
  for (unsigned seed = 0; seed < 9; ++seed) {
    check<__half>({4, 2, 64}, {{65, 5}, {0, 0}, {600, 2}, {0, 12}}, seed);
  }
}

TEST(pages_float8_heads_of_128) {
  for (unsigned seed = 0; seed < 9; ++seed) {
    check<__nv_bfloat16>({6, 1, 128}, {{297, 3}, {0, 1}, {64, 1}, {62, 2}}, seed);
  }
}

TEST(pages_float8_heads_of_256) {
  for (unsigned seed = 0; seed < 3; ++seed) {
    check<__half>({8, 1, 256}, {{97, 3}, {31, 2}, {255, 1}}, seed);
    check<__nv_bfloat16>({2, 2, 256}, {{40, 20}}, seed);
  }
}

TEST(pages_float8_odd_sizes) {
  for (unsigned seed = 0; seed < 3; ++seed) {
    check<__half>({4, 2, 40, 70}, {{191, 9}, {0, 30}, {63, 1}}, seed);
    check<__nv_bfloat16>({4, 2, 80, -1, 5, true}, {{85, 9}, {0, 1}}, seed);
    check<__half>({2, 2, 8}, {{0, 130}, {1, 17}}, seed);
    check<__half>({4, 4, 64, -1, 0, false, true}, {{91, 9}, {0, 30}, {163, 1}}, seed);
    check<__half>({6, 2, 104, 5}, {{125, 9}, {3, 6}}, seed);
    check<__nv_bfloat16>({3, 1, 200, 40}, {{61, 7}}, seed);
  }
}

TEST(pages_float8_magnitudes) {
  for (unsigned seed = 0; seed < 3; ++seed) check_magnitudes(seed);
}

TEST(pages_float8_cuts) {
  for (unsigned seed = 0; seed < 3; ++seed) {
    check_cuts<__half>({4, 2, 64}, seed);
    check_cuts<__nv_bfloat16>({3, 1, 72, 50}, seed);
  }
  check_cuts<__half>({2, 1, 136}, 3);
}

}  // namespace
}  // namespace packhorse::cuda
