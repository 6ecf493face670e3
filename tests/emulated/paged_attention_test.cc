// Attention over pages: the kernel for prompts and that for few rows, against float64, and against
// each other, bit by bit.
#include <utility>

#include "cuda/attention/paged/paged.h"
#include "emulated_stream.h"
#include "emulated_test.h"
#include "ops/args/attention.h"

namespace packhorse::cuda {
namespace {

using namespace packhorse::emulated_test;

struct Texts {
  std::vector<int32_t> new_tokens;  // tokens of the step, by sequence
  std::vector<int32_t> kv_lens;     // keys by sequence, with the new ones
};

struct Shape {
  int heads = 4, kv_heads = 2, head_dim = 64;
  AttentionMask mask{.causal = true};
  float soft_cap = 0;
  bool alibi = false;
  bool buckets = false;
  bool cross = false;  // keys are those of a source: all are in their pages, and seen by all rows
};

template <class T>
struct Case {
  Shape shape;
  Texts texts;
  int tokens = 0, pages_of_one = 0;
  Array<T> q, keys, values, out, new_keys, new_values;
  Array<int32_t> table, kv_lens, cu_seqlens;
  Array<float> slopes, numbers, workspace;
  Array<unsigned> counters;

  static int sum(const std::vector<int32_t>& x) {
    int total = 0;
    for (int one : x) total += one;
    return total;
  }
  static int longest(const std::vector<int32_t>& x) {
    return *std::max_element(x.begin(), x.end());
  }

  Case(const Shape& shape, const Texts& texts, unsigned seed)
      : shape(shape),
        texts(texts),
        tokens(sum(texts.new_tokens)),
        pages_of_one(static_cast<int>((longest(texts.kv_lens) + kPageTokens - 1) / kPageTokens)),
        q(size_of(shape.heads)),
        keys(pages()),
        values(pages()),
        out(size_of(shape.heads)),
        new_keys(size_of(shape.kv_heads)),
        new_values(size_of(shape.kv_heads)),
        table(texts.kv_lens.size() * static_cast<size_t>(pages_of_one)),
        kv_lens(texts.kv_lens),
        cu_seqlens(texts.kv_lens.size() + 1),
        slopes(static_cast<size_t>(shape.heads)),
        numbers(bucket_bias(shape.heads)),
        workspace(1 << 18),
        counters(static_cast<size_t>(kPagedCounters)) {
    std::mt19937 random(seed);
    fill_normal(q, random);
    fill_normal(keys, random);
    fill_normal(values, random);
    std::vector<int32_t> order(table.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
    std::shuffle(order.begin(), order.end(), random);
    for (size_t i = 0; i < order.size(); ++i) table[i] = order[i];
    cu_seqlens[0] = 0;
    for (size_t b = 0; b < texts.new_tokens.size(); ++b)
      cu_seqlens[b + 1] = cu_seqlens[b] + texts.new_tokens[b];
    for (size_t h = 0; h < slopes.size(); ++h) slopes[h] = 0.1f * static_cast<float>(h + 1);
    counters.fill_bytes(0);
    if (!shape.cross) copy_new();
    spoil_unwritten();
  }

  size_t size_of(int heads) const {
    return static_cast<size_t>(tokens) * static_cast<size_t>(heads * shape.head_dim);
  }
  size_t pages() const {
    return texts.kv_lens.size() *
           static_cast<size_t>(pages_of_one * shape.kv_heads * kPageTokens * shape.head_dim);
  }
  size_t place(size_t b, int head, int position, int column) const {
    const auto page = static_cast<size_t>(
        table[b * static_cast<size_t>(pages_of_one) + static_cast<size_t>(position / kPageTokens)]);
    return ((page * static_cast<size_t>(shape.kv_heads) + static_cast<size_t>(head)) * kPageTokens +
            static_cast<size_t>(position % kPageTokens)) *
               static_cast<size_t>(shape.head_dim) +
           static_cast<size_t>(column);
  }
  template <class F>
  void for_new(F f) {
    for (size_t b = 0; b < texts.kv_lens.size(); ++b) {
      for (int i = 0; i < texts.new_tokens[b]; ++i) {
        const int position = texts.kv_lens[b] - texts.new_tokens[b] + i;
        for (int h = 0; h < shape.kv_heads; ++h) {
          for (int c = 0; c < shape.head_dim; ++c) {
            const size_t row = static_cast<size_t>(cu_seqlens[b] + i);
            f(place(b, h, position, c),
              (row * static_cast<size_t>(shape.kv_heads) + static_cast<size_t>(h)) *
                      static_cast<size_t>(shape.head_dim) +
                  static_cast<size_t>(c));
          }
        }
      }
    }
  }
  void copy_new() {
    for_new([&](size_t in_pages, size_t fresh) {
      new_keys[fresh] = keys[in_pages];
      new_values[fresh] = values[in_pages];
    });
  }
  /// Rows of pages past the end of a sequence are NaN.
  void spoil_unwritten() {
    for (size_t b = 0; b < texts.kv_lens.size(); ++b) {
      for (int position = texts.kv_lens[b]; position < pages_of_one * kPageTokens; ++position) {
        for (int h = 0; h < shape.kv_heads; ++h) {
          for (int c = 0; c < shape.head_dim; ++c) {
            keys[place(b, h, position, c)] = values[place(b, h, position, c)] = rounded<T>(NAN);
          }
        }
      }
    }
  }

  AttentionArgs args() {
    AttentionArgs p;
    const int64_t columns = shape.heads * shape.head_dim;
    const auto page_rows = static_cast<int64_t>(keys.size()) / shape.head_dim;
    p.q = {q.data(), kDType<T>, tokens, columns};
    p.out = {out.data(), kDType<T>, tokens, columns};
    p.queries = {.num_tokens = tokens,
                 .num_sequences = static_cast<int64_t>(texts.kv_lens.size()),
                 .max_seqlen = longest(texts.new_tokens),
                 .cu_seqlens = cu_seqlens.data()};
    p.pages = {.keys = {keys.data(), kDType<T>, page_rows, shape.head_dim},
               .values = {values.data(), kDType<T>, page_rows, shape.head_dim},
               .table = table.data(),
               .table_stride = pages_of_one,
               .kv_lens = kv_lens.data(),
               .max_kv_len = longest(texts.kv_lens)};
    p.num_heads = shape.heads;
    p.num_kv_heads = shape.kv_heads;
    p.head_dim = shape.head_dim;
    p.scale = 1 / std::sqrt(static_cast<float>(shape.head_dim));
    p.soft_cap = shape.soft_cap;
    p.mask = shape.mask;
    if (shape.alibi) {
      p.term.kind = ScoreTermKind::kAlibi;
      p.term.slopes = slopes.data();
    }
    if (shape.buckets) {
      p.term.kind = ScoreTermKind::kBucketed;
      p.term.by_distance = numbers.data();
      p.term.max_distance = kMostDistance;
    }
    return p;
  }

  std::vector<double> reference() const {
    std::vector<double> result(out.size());
    const auto d = static_cast<size_t>(shape.head_dim);
    for (size_t b = 0; b < texts.kv_lens.size(); ++b) {
      const int length = texts.kv_lens[b];
      for (int i = 0; i < texts.new_tokens[b]; ++i) {
        const int position = length - texts.new_tokens[b] + i;
        const int first =
            shape.mask.window_left < 0 ? 0 : std::max(0, position - shape.mask.window_left);
        const int last = shape.mask.causal ? position : length - 1;
        for (int h = 0; h < shape.heads; ++h) {
          const int kv = h / (shape.heads / shape.kv_heads);
          const size_t row =
              (static_cast<size_t>(cu_seqlens[b] + i) * static_cast<size_t>(shape.heads) +
               static_cast<size_t>(h)) *
              d;
          std::vector<double> scores;
          double maximum = -INFINITY, sum = 0;
          for (int j = first; j <= last; ++j) {
            double score = 0;
            for (int c = 0; c < shape.head_dim; ++c)
              score +=
                  to_double(q[row + static_cast<size_t>(c)]) * to_double(keys[place(b, kv, j, c)]);
            score /= std::sqrt(static_cast<double>(shape.head_dim));
            if (shape.soft_cap != 0) score = shape.soft_cap * std::tanh(score / shape.soft_cap);
            if (shape.alibi) score -= slopes[static_cast<size_t>(h)] * std::abs(position - j);
            if (shape.buckets) score += bucket_number(numbers, h, position - j);
            scores.push_back(score);
            maximum = std::max(maximum, score);
          }
          for (double& score : scores) sum += score = std::exp(score - maximum);
          for (int j = first; j <= last; ++j) {
            for (int c = 0; c < shape.head_dim; ++c) {
              result[row + static_cast<size_t>(c)] += scores[static_cast<size_t>(j - first)] / sum *
                                                      to_double(values[place(b, kv, j, c)]);
            }
          }
        }
      }
    }
    return result;
  }
};

constexpr int kForPrompts = 1, kForSkinnyRows = 1000;  // multiprocessors that make the choice

template <class T>
void check(const Shape& shape, const Texts& texts, unsigned seed) {
  emulated::set_seed(seed);
  Case<T> one(shape, texts, seed);
  const std::vector<double> expected = one.reference();
  launch_attention_pages(one.args(), {}, emulated_stream(kForPrompts));
  CHECK_WITHIN(error_of(one.out, expected), 8 * kEpsilon<T>);
  Array<T> prompts(one.out.size());
  std::memcpy(prompts.data(), one.out.data(), one.out.size() * sizeof(T));
  one.out.fill_bytes(0xff);
  launch_attention_pages(one.args(), {}, emulated_stream(kForSkinnyRows));
  CHECK(one.out.same_bits(prompts));
  // Launches blocks that share a sequence, with new tokens that are not in their pages yet: the
  // same bits.
  Array<T> keys(one.keys.size());
  std::memcpy(keys.data(), one.keys.data(), keys.size() * sizeof(T));
  AttentionArgs args = one.args();
  const PagedLaunch how = {.counters = one.counters.data(),
                           .workspace_bytes = one.workspace.size() * sizeof(float)};
  args.workspace = one.workspace.data();
  const int64_t kv_columns = shape.kv_heads * shape.head_dim;
  args.k = {one.new_keys.data(), kDType<T>, one.tokens, kv_columns};
  args.v = {one.new_values.data(), kDType<T>, one.tokens, kv_columns};
  for (const int multiprocessors : {kForSkinnyRows, kForPrompts}) {
    if (!appends_to_pages(args, emulated_stream(multiprocessors).caps)) continue;
    one.for_new([&](size_t in_pages, size_t) {
      one.keys[in_pages] = one.values[in_pages] = rounded<T>(NAN);
    });
    one.out.fill_bytes(0xff);
    launch_attention_pages(args, how, emulated_stream(multiprocessors));
    CHECK(one.out.same_bits(prompts));
    CHECK(one.keys.same_bits(keys));
  }
  // The kernel for few rows finds no room on a device of less shared memory.
  one.out.fill_bytes(0xff);
  KernelStream small = emulated_stream(kForSkinnyRows);
  small.caps.shared_bytes = size_t{64} << 10;
  args.k = args.v = {};
  int64_t& single = args.pages.num_single;
  while (single < args.queries.num_sequences &&
         texts.new_tokens[static_cast<size_t>(single)] == 1) {
    ++single;
  }
  if (shape.head_dim > 128) CHECK(!appends_to_pages(args, small.caps));
  launch_attention_pages(args, how, small);
  CHECK(one.out.same_bits(prompts));
}

TEST(pages_heads_of_64) {
  for (unsigned seed = 0; seed < 9; ++seed) check<__half>({}, {{5, 1, 12}, {70, 130, 12}}, seed);
}

TEST(pages_heads_of_128) {  // few rows by TMA
  const Shape shape{.heads = 3, .kv_heads = 1, .head_dim = 128};
  for (unsigned seed = 0; seed < 9; ++seed) {
    check<__nv_bfloat16>(shape, {{1, 1, 1}, {300, 1, 65}}, seed);
  }
}

TEST(pages_heads_of_256) {
  const Shape shape{.heads = 2, .kv_heads = 1, .head_dim = 256};
  for (unsigned seed = 0; seed < 3; ++seed) check<__half>(shape, {{3, 2}, {100, 33}}, seed);
}

TEST(pages_odd_sizes) {
  for (unsigned seed = 0; seed < 3; ++seed) {
    check<__half>({.head_dim = 40, .mask = {.causal = true, .window_left = 70}},
                  {{9, 30}, {200, 30}}, seed);
    check<__nv_bfloat16>({.head_dim = 80, .soft_cap = 5, .alibi = true}, {{2, 1}, {90, 1}}, seed);
    check<__half>({.heads = 1, .kv_heads = 1, .mask = {}}, {{6}, {130}}, seed);
  }
}

TEST(pages_term_of_buckets) {
  for (unsigned seed = 0; seed < 3; ++seed) {
    check<__half>({.buckets = true}, {{5, 1, 12}, {70, 130, 12}}, seed);
    check<__nv_bfloat16>({.heads = 3, .kv_heads = 1, .head_dim = 128, .buckets = true},
                         {{1, 2}, {300, 65}}, seed);
    check<__half>({.heads = 2, .kv_heads = 2, .head_dim = 256, .soft_cap = 5, .buckets = true},
                  {{3, 2}, {100, 33}}, seed);
  }
}

// Sequences of one chunk, so many that on few multiprocessors every warp has some of its own.
const Texts kManyShort{{1, 1, 0, 3, 1, 1, 2, 1, 1, 1, 5, 1, 1, 1, 1, 4},
                       {1, 70, 9, 128, 64, 65, 20, 33, 127, 2, 5, 100, 63, 12, 90, 66}};

// Two of them have two chunks.
const Texts kManyUneven{{1, 1, 1, 2, 1, 1, 1, 1, 1, 1, 1, 1},
                        {1, 70, 300, 128, 64, 65, 20, 33, 257, 2, 5, 100}};

TEST(pages_of_many_short_sequences) {
  for (unsigned seed = 0; seed < 3; ++seed) {
    check<__half>({.heads = 3, .kv_heads = 3}, kManyUneven, seed);
    check<__half>({}, kManyShort, seed);
    check<__nv_bfloat16>({.heads = 3, .kv_heads = 3}, kManyShort, seed);
    check<__half>({.heads = 6, .kv_heads = 2, .head_dim = 40, .soft_cap = 5, .alibi = true},
                  kManyShort, seed);
    check<__half>({.mask = {.causal = true, .window_left = 30}}, kManyShort, seed);
  }
}

/// Launches over sources: the rows of every kernel have the same bits, also those of a launch for
/// bounds, whose exact numbers lie on the device, and those of a row alone.
template <class T>
void check_cross(Shape shape, const Texts& texts, unsigned seed) {
  emulated::set_seed(seed);
  shape.cross = true;
  shape.mask = {};
  Case<T> one(shape, texts, seed);
  launch_attention_pages(one.args(), {}, emulated_stream(kForPrompts));
  CHECK_WITHIN(error_of(one.out, one.reference()), 8 * kEpsilon<T>);
  Array<T> prompts(one.out.size());
  std::memcpy(prompts.data(), one.out.data(), one.out.size() * sizeof(T));
  const auto attend = [&](AttentionArgs args, int multiprocessors) {
    one.out.fill_bytes(0xff);
    args.workspace = one.workspace.data();
    launch_attention_pages(
        args,
        {.counters = one.counters.data(), .workspace_bytes = one.workspace.size() * sizeof(float)},
        emulated_stream(multiprocessors));
    CHECK(one.out.same_bits(prompts));
  };
  attend(one.args(), kForSkinnyRows);
  attend(one.args(), 2);
  // Sequences beyond the batch have no rows, and any length.
  const size_t sequences = texts.kv_lens.size(), bound = sequences + 5;
  Array<int32_t> counts(std::vector<int32_t>{one.tokens, static_cast<int32_t>(sequences)});
  Array<int32_t> begins(bound + 1), lens(bound);
  for (size_t b = 0; b <= bound; ++b) begins[b] = b < sequences ? one.cu_seqlens[b] : one.tokens;
  for (size_t b = 0; b < bound; ++b) lens[b] = b < sequences ? texts.kv_lens[b] : 1 << 20;
  AttentionArgs args = one.args();
  args.queries.counts = counts.data();
  args.queries.num_sequences = static_cast<int64_t>(bound);
  args.queries.cu_seqlens = begins.data();
  args.pages.kv_lens = lens.data();
  args.pages.max_kv_len += 300;
  args.pages.table_stride = one.pages_of_one;
  for (const int multiprocessors : {kForSkinnyRows, 3}) attend(args, multiprocessors);
  // The last row of each sequence.
  for (size_t b = 0; b < sequences; ++b) {
    if (texts.new_tokens[b] == 0) continue;
    const int row = one.cu_seqlens[b + 1] - 1;
    Array<int32_t> alone(std::vector<int32_t>{0, 1});
    AttentionArgs last = one.args();
    const size_t columns = static_cast<size_t>(shape.heads * shape.head_dim);
    Array<T> out(columns);
    last.q = {one.q.data() + static_cast<size_t>(row) * columns, kDType<T>, 1,
              static_cast<int64_t>(columns)};
    last.out = {out.data(), kDType<T>, 1, static_cast<int64_t>(columns)};
    last.queries = {
        .num_tokens = 1, .num_sequences = 1, .max_seqlen = 1, .cu_seqlens = alone.data()};
    last.pages.table += static_cast<int64_t>(b) * one.pages_of_one;
    last.pages.kv_lens += b;
    launch_attention_pages(last, {}, emulated_stream(kForSkinnyRows));
    CHECK(std::memcmp(out.data(), prompts.data() + static_cast<size_t>(row) * columns,
                      columns * sizeof(T)) == 0);
  }
}

TEST(pages_of_sources) {
  const Texts texts{{5, 1, 20, 0, 3}, {70, 300, 7, 12, 0}};
  for (unsigned seed = 0; seed < 3; ++seed) {
    check_cross<__half>({}, texts, seed);
    check_cross<__nv_bfloat16>({.heads = 3, .kv_heads = 1, .head_dim = 128}, texts, seed);
    check_cross<__half>({.heads = 2, .kv_heads = 2, .head_dim = 16}, {{1, 1}, {0, 64}}, seed);
    check_cross<__half>({.heads = 2, .kv_heads = 1, .head_dim = 256}, {{3, 2}, {0, 33}}, seed);
    check_cross<__half>({.heads = 3, .kv_heads = 3}, kManyShort, seed);
  }
}

/// Long sequences by blocks that share the merge of their chunks, `resident` of which run at a
/// time: as long as they all do, each merges its share; if not, some give theirs up. Few blocks of
/// multiprocessors go on from one sequence to the next.
template <class T>
void check_shared_merge(const Shape& shape, const Texts& texts, unsigned seed) {
  Case<T> one(shape, texts, seed);
  emulated::set_seed(seed);
  launch_attention_pages(one.args(), {},
                         emulated_stream(kForSkinnyRows));  // without a workspace, nor a merge
  Array<T> whole(one.out.size());
  std::memcpy(whole.data(), one.out.data(), one.out.size() * sizeof(T));
  const std::pair<int, unsigned> kinds[] = {
      {1, 1}, {1, 100}, {2, 1}, {3, 1}, {3, 100}, {kForSkinnyRows, 4}, {kForSkinnyRows, 100}};
  for (const auto& [multiprocessors, resident] : kinds) {  // the more, the fewer units of a block
    one.out.fill_bytes(0xff);
    one.workspace.fill_bytes(0xff);
    emulated::set_seed(seed, resident);
    AttentionArgs args = one.args();
    args.workspace = one.workspace.data();
    launch_attention_pages(
        args,
        {.counters = one.counters.data(), .workspace_bytes = one.workspace.size() * sizeof(float)},
        emulated_stream(multiprocessors));
    CHECK(one.out.same_bits(whole));
    size_t left = 0;
    for (size_t i = 0; i < one.counters.size(); ++i) left += one.counters[i] == 0 ? 0 : 1;
    CHECK(left == 0);
  }
}

TEST(pages_shared_merge) {
  for (unsigned seed = 0; seed < 3; ++seed) {
    check_shared_merge<__nv_bfloat16>({.heads = 4, .kv_heads = 1, .head_dim = 128},
                                      {{1, 2}, {2500, 2100}}, seed);
  }
  // More chunks than a warp merges at a time: 64 of small heads, 128 of others.
  check_shared_merge<__half>({.heads = 2, .kv_heads = 1}, {{1}, {17000}}, 3);
  check_shared_merge<__half>({.heads = 8, .kv_heads = 2, .head_dim = 80}, {{2}, {2100}}, 4);
  check_shared_merge<__half>({.heads = 8, .kv_heads = 1, .head_dim = 200}, {{1}, {2500}}, 5);
}

}  // namespace
}  // namespace packhorse::cuda
