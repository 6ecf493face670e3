// The operator of attention within a batch, as Python calls it.
#pragma once

#include <cstdint>
#include <optional>

#include "model/layers/positions.h"
#include "packhorse/_native/ops_call.h"

namespace packhorse {

// Largest distance and number of buckets, equal to the limit in a spec: a table has two rows for
// each distance.
inline constexpr int kMostDistance = 1 << 14;

inline void put_disentangled(Call& call, ScoreTerm& term,
                             const std::optional<Floats>& position_keys,
                             const std::optional<Floats>& position_queries, int buckets,
                             int max_distance) {
  if (buckets < 0 || buckets == 2 || buckets % 2 != 0 || max_distance < 1 ||
      (buckets > 0 && max_distance < buckets / 2 + 2) || max_distance > kMostDistance ||
      buckets > kMostDistance) {
    throw InvalidArgument(concat("buckets ", buckets, ", max_distance ", max_distance,
                                 ": expected 0 or an even number from 4 on, and a distance of at "
                                 "least half of it and 2, both at most ",
                                 kMostDistance));
  }
  const int64_t slots = 2 * int64_t{buckets > 0 ? buckets : max_distance};
  const auto put = [&](const char* name, const std::optional<Floats>& table) {
    const TensorView rows = call.put(name, table);
    if (rows && rows.rows() != slots) {
      throw InvalidArgument(concat(name, " has ", rows.rows(), " rows, expected ", slots));
    }
    return rows;
  };
  const RelativeSlots relative = relative_slots(buckets, max_distance);
  term.kind = ScoreTermKind::kDisentangled;
  term.position_keys = put("position_keys", position_keys);
  term.position_queries = put("position_queries", position_queries);
  term.slots = call.put_values(relative.slots);
  term.slot_limit = relative.limit;
}

inline py::object attention(Call& call, Ops& ops, const Floats& q, const Floats& k, const Floats& v,
                            const Ints& cu_seqlens_q, const Ints& cu_seqlens_k, int num_heads,
                            int num_kv_heads, float scale, bool causal, int window_left,
                            int window_right, const std::optional<Floats>& alibi_slopes,
                            const std::optional<Floats>& bucket_table, int max_distance,
                            bool bidirectional, const std::optional<Floats>& position_keys,
                            const std::optional<Floats>& position_queries, int buckets) {
  AttentionArgs args;
  args.q = call.put("q", q);
  args.k = call.put("k", k);
  args.v = call.put("v", v);
  args.queries = call.put_batch(cu_seqlens_q, args.q.rows());
  args.keys = call.put_batch(cu_seqlens_k, args.k.rows());
  args.num_heads = num_heads;
  args.num_kv_heads = num_kv_heads;
  args.head_dim = num_heads > 0 ? static_cast<int32_t>(args.q.columns() / num_heads) : 0;
  args.scale = scale;
  args.mask = {.causal = causal, .window_left = window_left, .window_right = window_right};
  if (alibi_slopes) {
    args.term.kind = ScoreTermKind::kAlibi;
    args.term.slopes = call.put_vector("alibi_slopes", alibi_slopes, num_heads);
  } else if (bucket_table) {
    const auto [buckets, heads] = shape_of_matrix("bucket_table", *bucket_table);
    if (heads != num_heads) {
      throw InvalidArgument("bucket_table: expected [num_buckets, num_heads]");
    }
    args.term.kind = ScoreTermKind::kBucketed;
    args.term.num_buckets = static_cast<int32_t>(buckets);
    args.term.max_distance = max_distance;
    args.term.bidirectional = bidirectional;
    args.term.table = call.put_floats("bucket_table", *bucket_table);
  } else if (position_keys || position_queries) {
    put_disentangled(call, args.term, position_keys, position_queries, buckets, max_distance);
  }
  args.out = call.result(args.q.rows(), args.q.columns());
  args.workspace = call.allocate(ops.attention_workspace(args));
  ops.attention(args);
  return call.get(args.out);
}

}  // namespace packhorse
