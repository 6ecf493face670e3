// Attention over pages on Hopper: against float64, and bit by bit against the kernel for prompts
// and that for few rows.
#include <utility>

#include "cuda/attention/paged/sm90.h"
#include "emulated_stream.h"
#include "emulated_test.h"
#include "ops/args/kv_cache.h"

namespace packhorse::cuda {
namespace {

using namespace packhorse::emulated_test;

struct Options {
  int window = -1;  // keys to the left that a query sees
  float soft_cap = 0;
  bool alibi = false;
  bool causal = true;
  double early_keys = 1, late_keys = 1;  // scale of the first and last keys of a text
  int loud = -1;                         // the position of a key that is six times as large
  bool buckets = false;
};
struct Shape {
  int heads, kv_heads, head_dim;
  Options options{};
};
/// New tokens of a sequence, and its length with them.
using Texts = std::vector<std::pair<int, int>>;

size_t product(int a, int b, int c = 1, int d = 1) {
  return static_cast<size_t>(a) * static_cast<size_t>(b) * static_cast<size_t>(c) *
         static_cast<size_t>(d);
}

/// Random queries of some texts, and a cache with pages in random order. Whatever no query may see
/// is `poison`: rows past a text's end, pages of nobody, and the rest of the queries' rows.
template <class T>
struct Pages {
  static constexpr int kSpare = 3;         // pages of nobody
  static constexpr int kMoreTokens = 500;  // tokens that a bound may name beyond those that exist
  Shape shape;
  Texts texts;
  std::vector<int32_t> begins{0}, lens;  // filled by measure
  int tokens = 0, most_new = 0, longest = 0, table_stride, num_pages, q_stride;
  Array<T> q, keys, values;
  Array<int32_t> table, kv_lens, cu_seqlens, counts;
  Array<float> slopes, numbers;
  Array<unsigned> counters{static_cast<size_t>(kPagedCounters)};

  Pages(const Shape& shape, const Texts& texts, unsigned seed, double poison)
      : shape(shape),
        texts(texts),
        table_stride(measure()),
        num_pages(table_stride * static_cast<int>(texts.size()) + kSpare),
        q_stride((shape.heads + 2 * shape.kv_heads) * shape.head_dim),
        q(product(tokens + kMoreTokens, q_stride)),
        keys(product(num_pages, shape.kv_heads, kPageTokens, shape.head_dim)),
        values(keys.size()),
        table(product(static_cast<int>(texts.size()), table_stride)),
        kv_lens(lens),
        cu_seqlens(begins),
        counts(std::vector<int32_t>{tokens, static_cast<int32_t>(texts.size())}),
        slopes(static_cast<size_t>(shape.heads)),
        numbers(bucket_bias(shape.heads)) {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal(0, 1);
    for (Array<T>* array : {&q, &keys, &values}) {
      for (size_t i = 0; i < array->size(); ++i) (*array)[i] = rounded<T>(poison);
    }
    std::vector<int32_t> order(static_cast<size_t>(num_pages));
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
    std::shuffle(order.begin(), order.end(), random);
    for (size_t i = 0; i < table.size(); ++i) table[i] = order[i];
    for (int t = 0; t < tokens; ++t) {
      for (int c = 0; c < shape.heads * shape.head_dim; ++c) {
        q[product(t, q_stride) + static_cast<size_t>(c)] = rounded<T>(1.5 * normal(random));
      }
    }
    for (size_t b = 0; b < texts.size(); ++b) {
      for (int at = 0; at < lens[b]; ++at) {
        const Options& options = shape.options;
        const double scale =
            (options.early_keys + (options.late_keys - options.early_keys) * at / lens[b]) *
            (at == options.loud ? 6 : 1);
        for (int h = 0; h < shape.kv_heads; ++h) {
          for (int c = 0; c < shape.head_dim; ++c) {
            keys[place(b, h, at, c)] = rounded<T>(scale * normal(random));
            values[place(b, h, at, c)] = rounded<T>(normal(random));
          }
        }
      }
    }
    for (size_t h = 0; h < slopes.size(); ++h) slopes[h] = 0.1F * static_cast<float>(h + 1);
    counters.fill_bytes(0);
  }

  int measure() {
    for (auto [fresh, length] : texts) {
      tokens += fresh;
      begins.push_back(tokens);
      lens.push_back(length);
      most_new = std::max(most_new, fresh);
      longest = std::max(longest, length);
    }
    return static_cast<int>((longest + kPageTokens - 1) / kPageTokens) + 1;
  }
  /// Elements of the output.
  size_t rows() const { return product(tokens, shape.heads, shape.head_dim); }
  size_t place(size_t b, int head, int at, int column) const {
    const int page =
        table[b * static_cast<size_t>(table_stride) + static_cast<size_t>(at / kPageTokens)];
    const size_t row = (product(page, shape.kv_heads) + static_cast<size_t>(head)) * kPageTokens +
                       static_cast<size_t>(at % kPageTokens);
    return row * static_cast<size_t>(shape.head_dim) + static_cast<size_t>(column);
  }

  AttentionArgs args(Array<T>& out) {
    AttentionArgs p;
    const int64_t columns = shape.heads * shape.head_dim;
    const int64_t page_rows = int64_t{num_pages} * shape.kv_heads * kPageTokens;
    p.q = {q.data(), kDType<T>, tokens, columns, q_stride};
    p.out = {out.data(), kDType<T>, tokens, columns};
    p.queries = {.num_tokens = tokens,
                 .num_sequences = static_cast<int64_t>(texts.size()),
                 .max_seqlen = most_new,
                 .cu_seqlens = cu_seqlens.data()};
    p.pages = {.keys = {keys.data(), kDType<T>, page_rows, shape.head_dim},
               .values = {values.data(), kDType<T>, page_rows, shape.head_dim},
               .table = table.data(),
               .table_stride = table_stride,
               .kv_lens = kv_lens.data(),
               .max_kv_len = longest};
    p.num_heads = shape.heads;
    p.num_kv_heads = shape.kv_heads;
    p.head_dim = shape.head_dim;
    p.scale = 1 / std::sqrt(static_cast<float>(shape.head_dim));
    p.soft_cap = shape.options.soft_cap;
    p.mask = {
        .causal = shape.options.causal, .window_left = shape.options.window, .window_right = -1};
    if (shape.options.alibi) {
      p.term.kind = ScoreTermKind::kAlibi;
      p.term.slopes = slopes.data();
    }
    if (shape.options.buckets) {
      p.term.kind = ScoreTermKind::kBucketed;
      p.term.by_distance = numbers.data();
      p.term.max_distance = kMostDistance;
    }
    return p;
  }
  PagedLaunch launch() { return {.counters = counters.data()}; }

  std::vector<double> reference() const {
    const auto d = static_cast<size_t>(shape.head_dim);
    std::vector<double> result(product(tokens, shape.heads) * d);
    std::vector<double> weights(static_cast<size_t>(longest));
    for (size_t b = 0; b < texts.size(); ++b) {
      for (int i = 0; i < texts[b].first; ++i) {
        const int position = lens[b] - texts[b].first + i;
        const int first =
            shape.options.window < 0 ? 0 : std::max(0, position - shape.options.window);
        const int last = shape.options.causal ? position : lens[b] - 1;
        for (int h = 0; h < shape.heads; ++h) {
          const int kv = h / (shape.heads / shape.kv_heads);
          const auto token = static_cast<size_t>(begins[b] + i);
          const T* const row = q.data() + token * static_cast<size_t>(q_stride) + product(h, 1) * d;
          double maximum = -INFINITY, sum = 0;
          for (int j = first; j <= last; ++j) {
            double score = 0;
            for (size_t c = 0; c < d; ++c) {
              score += to_double(row[c]) * to_double(keys[place(b, kv, j, 0) + c]);
            }
            score /= std::sqrt(static_cast<double>(shape.head_dim));
            if (shape.options.soft_cap != 0)
              score = shape.options.soft_cap * std::tanh(score / shape.options.soft_cap);
            if (shape.options.alibi) {
              score -= to_double(slopes[static_cast<size_t>(h)]) * std::abs(position - j);
            }
            if (shape.options.buckets) score += bucket_number(numbers, h, position - j);
            weights[static_cast<size_t>(j)] = score;
            maximum = std::max(maximum, score);
          }
          for (int j = first; j <= last; ++j) {
            double& weight = weights[static_cast<size_t>(j)];
            sum += weight = std::exp(weight - maximum);
          }
          double* const to =
              result.data() + (token * static_cast<size_t>(shape.heads) + product(h, 1)) * d;
          for (int j = first; j <= last; ++j) {
            for (size_t c = 0; c < d; ++c) {
              to[c] +=
                  weights[static_cast<size_t>(j)] / sum * to_double(values[place(b, kv, j, 0) + c]);
            }
          }
        }
      }
    }
    return result;
  }
};

template <class T>
void attend(Pages<T>& pages, int sm_count, bool hopper, Array<T>& out) {
  out.fill_bytes(0xff);
  const AttentionArgs args = pages.args(out);
  KernelStream stream = emulated_stream(sm_count);
  stream.caps.wgmma = hopper;
  hopper ? launch_attention_pages_sm90(args, pages.launch(), stream)
         : launch_attention_pages(args, pages.launch(), stream);
  for (size_t i = 0; i < pages.counters.size(); ++i) CHECK(pages.counters[i] == 0);
}

// Multiprocessors with which launch_attention_pages takes the kernel for prompts (of more than 16
// rows), and that for few rows.
constexpr int kForPrompts = 1, kForSkinnyRows = 1000;

template <class T>
void check(const Shape& shape, const Texts& texts, unsigned seeds = 3, double poison = NAN) {
  Pages<T> pages(shape, texts, 7, poison);
  emulated::set_seed(0);
  Array<T> prompts(pages.rows()), few(pages.rows()), found(pages.rows());
  attend(pages, kForPrompts, false, prompts);
  attend(pages, kForSkinnyRows, false, few);
  CHECK_WITHIN(error_of(prompts, pages.reference()), 8 * kEpsilon<T>);
  CHECK(few.same_bits(prompts));
  for (unsigned seed = 0; seed < seeds; ++seed) {
    emulated::set_seed(seed);
    // Blocks have several slabs each, or one.
    attend(pages, seed % 2 == 0 ? 2 : 1000, true, found);
    CHECK(found.same_bits(prompts));
  }
}

TEST(pages_sm90_heads_of_64) {
  check<__half>({4, 2, 64}, {{5, 70}, {1, 130}, {60, 60}}, 9);
  check<__half>({1, 1, 64}, {{1, 1}, {300, 300}, {2, 2}});
  check<__half>({8, 1, 64}, {{130, 700}});
  check<__nv_bfloat16>({4, 1, 64}, {{100, 355}, {0, 40}, {33, 33}});
  check<__nv_bfloat16>({2, 2, 64}, {{64, 64}, {65, 256}, {63, 257}, {192, 255}, {193, 512}});
}

TEST(pages_sm90_heads_of_128) {
  check<__half>({4, 2, 128}, {{5, 70}, {1, 130}, {60, 60}}, 9);
  check<__nv_bfloat16>({1, 1, 128}, {{1, 1}, {300, 300}, {2, 2}});
  check<__half>({8, 1, 128}, {{40, 500}});
  check<__half>({2, 2, 128}, {{64, 64}, {65, 128}, {63, 129}, {128, 127 + 128}, {129, 257}});
}

TEST(pages_sm90_other_heads) {
  check<__half>({2, 1, 8}, {{70, 100}});
  check<__nv_bfloat16>({2, 1, 40}, {{70, 170}});
  check<__half>({4, 1, 72}, {{50, 170}});
  check<__half>({2, 2, 80}, {{50, 170}, {20, 20}});
  check<__half>({4, 2, 96}, {{50, 170}, {20, 20}});
  check<__nv_bfloat16>({2, 1, 112}, {{140, 170}});
}

TEST(pages_sm90_groups_that_leave_rows_empty) {
  check<__half>({3, 1, 64}, {{130, 200}, {7, 7}});
  check<__half>({10, 2, 128}, {{60, 90}, {27, 27}});
  check<__nv_bfloat16>({40, 1, 64}, {{9, 70}, {5, 5}});
  check<__half>({100, 1, 128}, {{3, 70}});
}

TEST(pages_sm90_masks_and_terms) {
  check<__half>({2, 1, 64, {.window = 5}}, {{200, 400}, {150, 150}});
  check<__half>({2, 1, 64, {.window = 100}}, {{200, 400}, {150, 150}});
  check<__nv_bfloat16>({4, 1, 128, {.window = 100}}, {{60, 400}, {150, 150}});
  check<__half>({2, 1, 64, {.window = 600}}, {{70, 700}});
  check<__half>({2, 1, 64, {.soft_cap = 5}}, {{100, 200}});
  check<__half>({4, 2, 128, {.soft_cap = 30, .alibi = true}}, {{70, 200}, {20, 20}});
  check<__nv_bfloat16>({3, 1, 64, {.window = 90, .soft_cap = 30, .alibi = true}}, {{70, 300}});
  check<__half>({2, 1, 64, {.causal = false}}, {{100, 100}, {30, 200}});
  check<__half>({4, 2, 64, {.buckets = true}}, {{70, 200}, {20, 20}, {1, 90}});
  check<__nv_bfloat16>({3, 3, 128, {.soft_cap = 30, .buckets = true}}, {{70, 300}});
}

/// Sequences of a target attend to sources that are shorter, longer or empty.
TEST(pages_sm90_of_sources) {
  const Texts texts = {{100, 3}, {5, 0}, {30, 200}, {1, 70}, {0, 9}, {70, 64}};
  check<__half>({2, 1, 64, {.causal = false}}, texts, 6);
  check<__nv_bfloat16>({3, 3, 128, {.causal = false}}, texts);
}

TEST(pages_sm90_past_the_end_is_infinite) {
  check<__half>({2, 1, 64}, {{100, 129}, {70, 70}}, 3, INFINITY);
  check<__nv_bfloat16>({2, 1, 128}, {{100, 129}, {70, 70}}, 3, INFINITY);
}

/// A value that is infinite makes what sees it infinite or NaN, and nothing else.
TEST(pages_sm90_infinite_values) {
  for (int head_dim : {64, 128}) {
    Pages<__half> pages({2, 1, head_dim, {.window = 70}}, {{300, 300}, {64, 200}}, 3, NAN);
    pages.values[pages.place(0, 0, 130, 3)] = rounded<__half>(INFINITY);
    pages.values[pages.place(0, 0, 299, 5)] = rounded<__half>(NAN);
    pages.values[pages.place(1, 0, 199, 7)] = rounded<__half>(-INFINITY);
    emulated::set_seed(1);
    Array<__half> expected(pages.rows()), found(pages.rows());
    attend(pages, kForPrompts, false, expected);
    attend(pages, 2, true, found);
    CHECK(found.same_bits(expected));
  }
}

/// The numbers of tokens and sequences are bounds, and the first sequences are another launch's.
TEST(pages_sm90_bounds) {
  Pages<__half> pages({4, 2, 64}, {{1, 70}, {1, 5}, {90, 100}, {30, 200}}, 3, NAN);
  emulated::set_seed(2);
  Array<__half> expected(pages.rows()), out(pages.rows());
  attend(pages, kForPrompts, false, expected);
  out.fill_bytes(0);
  AttentionArgs args = pages.args(out);
  args.queries.counts = pages.counts.data();
  args.queries.num_tokens += Pages<__half>::kMoreTokens;
  args.queries.num_sequences += 7;
  launch_attention_pages_sm90(args, pages.launch(), emulated_stream(3));
  CHECK(out.same_bits(expected));
  out.fill_bytes(0);
  args = pages.args(out);
  args.queries.num_sequences -= 2;
  args.queries.cu_seqlens += 2;
  args.pages.kv_lens += 2;
  args.pages.table += 2 * pages.table_stride;
  launch_attention_pages_sm90(args, pages.launch(), emulated_stream(3));
  const size_t first = product(2, 4, 64);
  for (size_t i = 0; i < first; ++i) CHECK(to_double(out[i]) == 0);
  CHECK(std::memcmp(out.data() + first, expected.data() + first,
                    (out.size() - first) * sizeof(__half)) == 0);
  CHECK(pages.counters[0] == 0);
}

/// Few rows of long texts, whose chunks several blocks have: one merges them, by lanes.
template <class T>
void check_chunks(const Shape& shape, const Texts& texts) {
  Pages<T> pages(shape, texts, 11, NAN);
  Array<T> expected(pages.rows()), found(pages.rows());
  Array<float> workspace(size_t{1} << 20);
  emulated::set_seed(1);
  attend(pages, 2, true, expected);
  for (int sm_count : {1000, 5}) {
    emulated::set_seed(static_cast<unsigned>(sm_count));
    AttentionArgs args = pages.args(found);
    PagedLaunch how = pages.launch();
    args.workspace = workspace.data();
    how.workspace_bytes = workspace.size() * sizeof(float);
    found.fill_bytes(0xff);
    launch_attention_pages(args, how, emulated_stream(sm_count));
    CHECK(found.same_bits(expected));
    for (size_t i = 0; i < pages.counters.size(); ++i) CHECK(pages.counters[i] == 0);
  }
}

TEST(pages_many_chunks) {
  check_chunks<__half>({1, 1, 64}, {{1, 9000}, {1, 300}});
  check_chunks<__half>({2, 1, 64}, {{1, 8192}, {2, 8193}, {1, 4097}});
  check_chunks<__half>({4, 1, 128}, {{1, 9000}, {1, 2049}, {1, 2048}});
  check_chunks<__nv_bfloat16>({2, 2, 128}, {{3, 4500}, {1, 1}});
  check_chunks<__half>({2, 1, 96}, {{1, 2500}, {4, 2177}});
  check_chunks<__half>({2, 1, 40}, {{4, 4000}});
  // The maximum grows from chunk to chunk, or that of the first ones stays.
  check_chunks<__half>({2, 1, 64, {.early_keys = 0, .late_keys = 3}}, {{2, 9000}});
  check_chunks<__half>({4, 1, 128, {.early_keys = 1, .late_keys = 20}}, {{1, 9000}});
  check_chunks<__half>({4, 1, 128, {.early_keys = 20, .late_keys = 0}}, {{1, 9000}});
  // The first of 32 chunks that are merged together has the maximum.
  check_chunks<__half>({4, 1, 64, {.loud = 32 * 256 + 5}}, {{2, 9000}});
  check_chunks<__half>({4, 1, 128, {.loud = 32 * 128 + 5}}, {{2, 4500}});
  check_chunks<__half>({2, 1, 64, {.window = 700}}, {{5, 9000}, {1, 600}});
  check_chunks<__half>({3, 1, 128, {.window = 250}}, {{5, 2181}, {5, 2300}});
}

}  // namespace
}  // namespace packhorse::cuda
