// Attention of short texts by single warps: against float64, beside the kernel of tiles, and the
// bits of a text in any batch.
#include <numeric>

#include "core/float8.h"
#include "cuda/attention/short/warps.h"
#include "emulated_stream.h"
#include "emulated_test.h"

namespace packhorse::cuda {
namespace {

using namespace packhorse::emulated_test;

struct Shape {
  int heads = 3, kv_heads = 3, head_dim = 64;
  AttentionMask mask = {};
  bool alibi = false;
  bool buckets = false;
};

struct Lengths {
  std::vector<int> queries;
  std::vector<int> keys;
  explicit Lengths(std::vector<int> both) : queries(both), keys(std::move(both)) {}
  Lengths(std::vector<int> q, std::vector<int> k) : queries(std::move(q)), keys(std::move(k)) {}
};

std::vector<int> every_length() {
  std::vector<int> lengths(kWarpTokens + 1);
  std::iota(lengths.begin(), lengths.end(), 0);
  lengths.push_back(0);
  return lengths;
}

std::vector<int32_t> offsets_of(const std::vector<int>& lengths) {
  std::vector<int32_t> offsets = {0};
  for (const int length : lengths) offsets.push_back(offsets.back() + length);
  return offsets;
}

/// One launch over texts whose rows lie in one matrix of queries, keys and values, as dense layers
/// leave them. Rows of a text are the same wherever it stands.
template <class T>
struct Case {
  Shape shape;
  Lengths lengths;
  std::vector<int32_t> q_offsets, k_offsets;
  int64_t q_width, kv_width, stride;
  Array<T> q, kv, out;
  Array<unsigned char> bytes;
  Array<int32_t> cu_q, cu_k, counts, workspace;
  Array<float> slopes, table;

  Case(const Shape& shape, const Lengths& lengths)
      : shape(shape),
        lengths(lengths),
        q_offsets(offsets_of(lengths.queries)),
        k_offsets(offsets_of(lengths.keys)),
        q_width(int64_t{shape.heads} * shape.head_dim),
        kv_width(int64_t{shape.kv_heads} * shape.head_dim),
        stride(2 * kv_width + 16),
        q(rows(q_offsets) * static_cast<size_t>(q_width)),
        kv(rows(k_offsets) * static_cast<size_t>(stride)),
        out(q.size()),
        bytes(q.size()),
        cu_q(q_offsets),
        cu_k(k_offsets),
        counts(2),
        workspace(1),
        slopes(static_cast<size_t>(shape.heads)),
        table(static_cast<size_t>(8 * shape.heads)) {
    for (size_t b = 0; b < lengths.queries.size(); ++b) {
      std::mt19937 random(static_cast<unsigned>(100 * lengths.queries[b] + lengths.keys[b]));
      std::normal_distribution<double> normal(0, 1);
      for (int64_t i = q_offsets[b] * q_width; i < q_offsets[b + 1] * q_width; ++i) {
        q[static_cast<size_t>(i)] = rounded<T>(1.5 * normal(random));
      }
      for (int64_t i = k_offsets[b] * stride; i < k_offsets[b + 1] * stride; ++i) {
        kv[static_cast<size_t>(i)] = rounded<T>(normal(random));
      }
    }
    for (size_t h = 0; h < slopes.size(); ++h) slopes[h] = 0.1f * static_cast<float>(h + 1);
    for (size_t i = 0; i < table.size(); ++i) table[i] = 0.25f * static_cast<float>(i % 7) - 0.5f;
    workspace[0] = 0;
  }
  static size_t rows(const std::vector<int32_t>& offsets) {
    return static_cast<size_t>(offsets.back());
  }
  static int32_t longest(const std::vector<int>& lengths) {
    return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  }

  AttentionArgs args() {
    AttentionArgs p;
    const int64_t queries = q_offsets.back(), keys = k_offsets.back();
    p.q = {q.data(), kDType<T>, queries, q_width};
    p.k = {kv.data(), kDType<T>, keys, kv_width, stride};
    p.v = {kv.data() + kv_width, kDType<T>, keys, kv_width, stride};
    p.out = {out.data(), kDType<T>, queries, q_width};
    p.queries = batch_of(q_offsets, lengths.queries, cu_q);
    p.keys = batch_of(k_offsets, lengths.keys, cu_k);
    p.num_heads = shape.heads;
    p.num_kv_heads = shape.kv_heads;
    p.head_dim = shape.head_dim;
    p.scale = 1 / std::sqrt(static_cast<float>(shape.head_dim));
    p.mask = shape.mask;
    if (shape.alibi) {
      p.term.kind = ScoreTermKind::kAlibi;
      p.term.slopes = slopes.data();
    }
    if (shape.buckets) {
      p.term.kind = ScoreTermKind::kBucketed;
      p.term.table = table.data();
      p.term.num_buckets = 8;
      p.term.max_distance = 20;
    }
    return p;
  }
  static BatchView batch_of(const std::vector<int32_t>& offsets, const std::vector<int>& lengths,
                            const Array<int32_t>& cu_seqlens) {
    return {.num_tokens = offsets.back(),
            .num_sequences = static_cast<int64_t>(lengths.size()),
            .max_seqlen = longest(lengths),
            .cu_seqlens = cu_seqlens.data()};
  }
  void launch(const AttentionArgs& args, int sm_count) {
    launch_attention_sm90(args, workspace.data(), emulated_stream(sm_count));
  }

  // The row of the table for an offset, by the definition of T5.
  static int bucket_of(int offset) {
    const int distance = std::abs(offset);
    int bucket = distance;
    if (distance >= 2) {
      const float ratio = std::log(static_cast<float>(distance) / 2.0f) / std::log(10.0f);
      bucket = std::min(2 + static_cast<int>(ratio * 2), 3);
    }
    return offset > 0 ? bucket + 4 : bucket;
  }
  double term(int h, int offset) const {
    const auto head = static_cast<size_t>(h);
    if (shape.alibi) return -static_cast<double>(slopes[head]) * std::abs(offset);
    if (!shape.buckets) return 0;
    return table[static_cast<size_t>(bucket_of(offset) * shape.heads) + head];
  }

  std::vector<double> expected() const {
    std::vector<double> result(out.size());
    const int d = shape.head_dim;
    for (size_t b = 0; b < lengths.queries.size(); ++b) {
      const int keys = lengths.keys[b];
      for (int i = 0; i < lengths.queries[b]; ++i) {
        const int position = keys - lengths.queries[b] + i;
        int first = 0;
        int last = keys - 1;
        if (shape.mask.window_left >= 0) first = std::max(0, position - shape.mask.window_left);
        if (shape.mask.window_right >= 0) last = std::min(last, position + shape.mask.window_right);
        if (shape.mask.causal) last = std::min(last, position);
        for (int h = 0; h < shape.heads; ++h) {
          const auto row = static_cast<size_t>((q_offsets[b] + i) * q_width + h * d);
          const int kv_head = h / (shape.heads / shape.kv_heads);
          const auto key = [&](int j, int64_t column) {
            return to_double(
                kv[static_cast<size_t>((k_offsets[b] + j) * stride + kv_head * d + column)]);
          };
          std::vector<double> scores;
          double most = -INFINITY;
          for (int j = first; j <= last; ++j) {
            double score = 0;
            for (int c = 0; c < d; ++c)
              score += to_double(q[row + static_cast<size_t>(c)]) * key(j, c);
            scores.push_back(score / std::sqrt(static_cast<double>(d)) + term(h, j - position));
            most = std::max(most, scores.back());
          }
          double sum = 0;
          for (double& score : scores) sum += score = std::exp(score - most);
          for (int j = first; j <= last; ++j) {
            for (int c = 0; c < d; ++c) {
              result[row + static_cast<size_t>(c)] +=
                  scores[static_cast<size_t>(j - first)] / sum * key(j, kv_width + c);
            }
          }
        }
      }
    }
    return result;
  }

  /// The error over the rows of texts that are (or are not) for the warps. The other rows must be
  /// as they were: NaN.
  double error(bool by_warps) const {
    const std::vector<double> all = expected();
    double most = 0;
    for (size_t b = 0; b < lengths.queries.size(); ++b) {
      const bool mine = computed_by_warps(lengths.queries[b], lengths.keys[b]) == by_warps;
      for (auto i = static_cast<size_t>(q_offsets[b] * q_width);
           i < static_cast<size_t>(q_offsets[b + 1] * q_width); ++i) {
        const double difference = std::abs(to_double(out[i]) - all[i]);
        if (!mine && !std::isnan(difference)) return INFINITY;
        if (mine) most = difference >= 0 ? std::max(most, difference) : INFINITY;
      }
    }
    return most;
  }
};

template <class T>
void check(const Shape& shape, const Lengths& lengths, int sm_count = 2, unsigned seed = 0) {
  emulated::set_seed(seed);
  Case<T> one(shape, lengths);
  launch_attention_warps(one.args(), emulated_stream(sm_count));
  CHECK_WITHIN(one.error(true), 8 * kEpsilon<T>);
}

const Lengths kUneven({5, 33, 1, 0, 100, 32, 31, 17, 16, 8, 9, 0, 64});

TEST(warps_every_length) {
  for (const int head_dim : {8, 24, 32, 40, 64, 72, 96, 128}) {
    check<__half>({.head_dim = head_dim}, Lengths(every_length()));
    check<__nv_bfloat16>({.head_dim = head_dim}, kUneven);
  }
}

TEST(warps_masks_and_terms) {
  for (const int head_dim : {32, 64, 128}) {
    for (const bool causal : {false, true}) {
      for (const auto& [left, right] : {std::pair{-1, -1}, {3, 2}, {0, 0}, {16, -1}, {-1, 5}}) {
        const AttentionMask mask{.causal = causal, .window_left = left, .window_right = right};
        check<__half>({.head_dim = head_dim, .mask = mask}, Lengths(every_length()));
      }
      const AttentionMask mask{.causal = causal};
      check<__half>({.head_dim = head_dim, .mask = mask, .alibi = true}, Lengths(every_length()));
      check<__half>({.head_dim = head_dim, .mask = mask, .buckets = true}, Lengths(every_length()));
    }
  }
}

TEST(warps_grouped_queries_and_other_keys) {
  const Lengths other({3, 1, 0, 32, 5, 33, 32, 10, 4, 7}, {32, 1, 7, 32, 33, 32, 4, 4, 0, 50});
  for (const int head_dim : {32, 64, 128}) {
    for (const bool causal : {false, true}) {
      const AttentionMask mask{.causal = causal};
      check<__half>({.heads = 4, .kv_heads = 2, .head_dim = head_dim, .mask = mask}, other);
      check<__half>({.heads = 6, .kv_heads = 1, .head_dim = head_dim, .mask = mask}, kUneven);
    }
  }
}

TEST(warps_empty_batches_and_few_multiprocessors) {
  for (const std::vector<int>& lengths : {std::vector<int>{}, {0}, {0, 0, 0}, {1}, {0, 1}}) {
    check<__half>({}, Lengths(lengths));
  }
  std::vector<int> many;
  for (int i = 0; i < 200; ++i) many.push_back(i % 9);
  for (unsigned seed = 0; seed < 9; ++seed) check<__half>({.head_dim = 32}, Lengths(many), 1, seed);
}

// A shortest text for which launch_attention_sm90 leaves out the warps.
constexpr int kTilesAlone = kWarpTokens + 1;

TEST(warps_and_tiles_of_one_batch) {
  for (unsigned seed = 0; seed < 9; ++seed) {
    for (const int sm_count : {1, 3}) {
      emulated::set_seed(seed);
      Case<__half> one({}, kUneven);
      AttentionArgs p = one.args();
      p.queries.min_seqlen = kTilesAlone;
      one.launch(p, sm_count);
      CHECK(one.workspace[0] == 0);
      CHECK_WITHIN(one.error(false), 8 * kEpsilon<__half>);
      launch_attention_warps(p, emulated_stream(sm_count));
      CHECK_WITHIN(error_of(one.out, one.expected()), 8 * kEpsilon<__half>);
      Case<__half> both({}, kUneven);
      both.launch(both.args(), sm_count);
      CHECK(both.out.same_bits(one.out));
    }
  }
  // Tiles find nothing to do, in lists of one entry for each text and of runs of texts.
  for (const int texts : {5, 40, 300}) {
    Case<__half> none({.heads = 2, .kv_heads = 2},
                      Lengths(std::vector<int>(static_cast<size_t>(texts), 3)));
    AttentionArgs p = none.args();
    p.queries.min_seqlen = kTilesAlone;
    p.queries.max_seqlen = p.keys.max_seqlen = 512;
    none.launch(p, 2);
    CHECK(none.workspace[0] == 0);
    for (size_t i = 0; i < none.out.size(); ++i) CHECK(std::isnan(to_double(none.out[i])));
  }
  // Long texts among very many short ones.
  std::vector<int> lengths(300, 2);
  lengths[7] = 40;
  lengths[299] = 70;
  for (const int sm_count : {1, 4}) {
    Case<__half> some({.heads = 2, .kv_heads = 2}, Lengths(lengths));
    AttentionArgs p = some.args();
    p.queries.min_seqlen = kTilesAlone;
    some.launch(p, sm_count);
    CHECK_WITHIN(some.error(false), 8 * kEpsilon<__half>);
  }
}

TEST(warps_read_the_counts_on_the_device) {
  Case<__half> exact({}, kUneven);
  launch_attention_warps(exact.args(), emulated_stream(2));
  Case<__half> bounded({}, kUneven);
  AttentionArgs p = bounded.args();
  bounded.counts[0] = static_cast<int32_t>(p.queries.num_tokens);
  bounded.counts[1] = 5;  // texts
  p.queries.counts = bounded.counts.data();
  launch_attention_warps(p, emulated_stream(2));
  const auto rows = static_cast<size_t>(bounded.q_offsets[5] * bounded.q_width);
  CHECK(std::memcmp(exact.out.data(), bounded.out.data(), rows * sizeof(__half)) == 0);
  for (size_t i = rows; i < bounded.out.size(); ++i) CHECK(std::isnan(to_double(bounded.out[i])));
}

TEST(warps_give_a_text_the_same_bits_anywhere) {
  for (const int head_dim : {32, 64, 128}) {
    const Shape shape{.head_dim = head_dim};
    Case<__half> batch(shape, kUneven);
    // Texts of other kernels lie behind some of these; what they hold must not be looked at.
    for (size_t b = 0; b < kUneven.queries.size(); ++b) {
      if (kUneven.queries[b] <= kWarpTokens) continue;
      for (int64_t i = batch.k_offsets[b] * batch.stride; i < batch.k_offsets[b + 1] * batch.stride;
           ++i) {
        batch.kv[static_cast<size_t>(i)] = rounded<__half>(NAN);
      }
    }
    launch_attention_warps(batch.args(), emulated_stream(2));
    for (size_t b = 0; b < kUneven.queries.size(); ++b) {
      const int length = kUneven.queries[b];
      if (length > kWarpTokens) continue;
      Case<__half> alone(shape, Lengths(std::vector<int>{length}));
      launch_attention_warps(alone.args(), emulated_stream(1));
      const __half* there = batch.out.data() + batch.q_offsets[b] * batch.q_width;
      CHECK(std::memcmp(alone.out.data(), there, alone.out.size() * sizeof(__half)) == 0);
    }
  }
}

TEST(warps_into_float8) {
  for (const int head_dim : {16, 32, 48, 64}) {
    Case<__half> one({.head_dim = head_dim}, kUneven);
    AttentionArgs p = one.args();
    p.out = {one.bytes.data(), DType::kFloat8, p.out.rows(), p.out.columns()};
    p.out_scale = 1 / 20.0f;
    launch_attention_warps(p, emulated_stream(2));
    const std::vector<double> expected = one.expected();
    for (size_t b = 0; b < kUneven.queries.size(); ++b) {
      for (auto i = static_cast<size_t>(one.q_offsets[b] * one.q_width);
           i < static_cast<size_t>(one.q_offsets[b + 1] * one.q_width); ++i) {
        const double found = float8_to_float32(one.bytes[i]) / 20.0;
        if (kUneven.queries[b] > kWarpTokens) {
          CHECK(std::isnan(found));
        } else {
          CHECK(std::abs(found - expected[i]) <= 0.07 * std::abs(expected[i]) + 1e-3);
        }
      }
    }
  }
}

}  // namespace
}  // namespace packhorse::cuda
