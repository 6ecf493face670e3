// Operators of attention: heads that are turned, keys and values in pages or of the batch.
#include <algorithm>
#include <cmath>
#include <utility>

#include "core/format.h"
#include "ops/checks.h"
#include "ops/ops.h"

namespace packhorse {
namespace {

void check_pages(const char* op, const PagedKvCache& pages, const BatchView& batch,
                 int64_t num_kv_heads, int64_t head_dim) {
  const int64_t page_rows = num_kv_heads * kPageTokens;
  for (auto [name, view] :
       {std::pair{"pages.keys", &pages.keys}, {"pages.values", &pages.values}}) {
    if (view->dtype != DType::kFloat8) check_compute_dtype(op, name, *view);
    check_dtype_is(op, name, *view, pages.keys.dtype);
    check_matrix(op, name, *view, pages.keys.rows(), head_dim);
    check_contiguous(op, name, *view);
    if (view->rows() % page_rows != 0) {
      fail(op, concat(name, " has ", view->rows(), " rows, expected a multiple of ", page_rows,
                      ": ", kPageTokens, " for each of ", num_kv_heads, " heads"));
    }
  }
  for (auto [name, view] : {std::pair{"pages.key_scales", &pages.key_scales},
                            {"pages.value_scales", &pages.value_scales}}) {
    if (pages.keys.dtype != DType::kFloat8) {
      if (*view) fail(op, concat(name, " are given, but the pages are not float8"));
      continue;
    }
    check_matrix(op, name, *view, pages.keys.rows() / kPageTokens, kPageTokens);
    check_dtype_is(op, name, *view, DType::kFloat32);
    check_contiguous(op, name, *view);
  }
  if (pages.max_kv_len < 0 || pages.max_kv_len > pages.table_stride * kPageTokens) {
    fail(op, concat("pages.max_kv_len is ", pages.max_kv_len, ", expected 0 to ",
                    pages.table_stride * kPageTokens, ", what ", pages.table_stride,
                    " pages of the table hold"));
  }
  if (pages.num_single < 0 || pages.num_single > batch.num_sequences) {
    fail(op, concat("pages.num_single is ", pages.num_single, ", expected 0 to ",
                    batch.num_sequences, ", the number of sequences"));
  }
  if (batch.num_tokens > 0 && (pages.table == nullptr || pages.kv_lens == nullptr)) {
    fail(op, concat("pages have no ", pages.table == nullptr ? "table" : "kv_lens", " for ",
                    batch.num_sequences, " sequences"));
  }
}

void check_append_kv_cache(const char* op, const AppendKvCacheArgs& args) {
  const int64_t columns = int64_t{args.num_kv_heads} * args.head_dim;
  check_compute_dtype(op, "k", args.k);
  check_dtype_is(op, "v", args.v, args.k.dtype);
  check_matrix(op, "k", args.k, args.batch.num_tokens, columns);
  check_matrix(op, "v", args.v, args.batch.num_tokens, columns);
  check_batch(op, "batch", args.batch, args.k.rows());
  check_pages(op, args.pages, args.batch, args.num_kv_heads, args.head_dim);
}

// What attention over pages can be asked for.
void check_paged_attention(const char* op, const AttentionArgs& args) {
  if (args.keys.num_tokens != 0) fail(op, "keys of their own beside pages, expected none");
  if (static_cast<bool>(args.k) != static_cast<bool>(args.v)) {
    fail(op, "one of k and v is given beside pages, expected both or none");
  }
  if (args.k) {
    check_append_kv_cache(op, appended(args));
  } else {
    check_pages(op, args.pages, args.queries, args.num_kv_heads, args.head_dim);
  }
  if (!args.mask.causal) fail(op, "the mask over pages is not causal, expected a causal one");
  if (args.term.kind != ScoreTermKind::kNone && args.term.kind != ScoreTermKind::kAlibi) {
    fail(op, "a bucketed or disentangled term was asked for over pages, expected ALiBi or none");
  }
  if (!(args.soft_cap >= 0) || !std::isfinite(args.soft_cap)) {
    fail(op, concat("soft_cap is ", args.soft_cap, ", expected a positive number, or 0 for none"));
  }
}

}  // namespace

void Ops::rotation(const RotationArgs& args) {
  const char* op = "rotation";
  if (args.dims <= 0 || args.dims % 2 != 0 || args.frequencies == nullptr) {
    fail(op, concat("dims is ", args.dims, ", expected two for each frequency"));
  }
  check_matrix(op, "out", args.out, args.batch.num_tokens, rotation_columns(args.dims));
  check_dtype_is(op, "out", args.out, DType::kFloat32);
  check_batch(op, "batch", args.batch, args.out.rows());
  if (args.out.rows() > 0) do_rotation(args);
}

void Ops::rope(const RopeArgs& args) {
  const char* op = "rope";
  check_head_dim(op, args.head_dim, head_dim_multiple());
  check_compute_dtype(op, "q", args.q);
  check_dtype_is(op, "k", args.k, args.q.dtype);
  check_rotated_heads(op, args, args.q.rows(), rotation_columns(args.dims));
  if (args.q.rows() > 0) do_rope(args);
}

void Ops::append_kv_cache(const AppendKvCacheArgs& args) {
  const char* op = "append_kv_cache";
  if (args.num_kv_heads <= 0) {
    fail(op, concat("num_kv_heads is ", args.num_kv_heads, ", expected a positive number"));
  }
  check_head_dim(op, args.head_dim, head_dim_multiple());
  check_append_kv_cache(op, args);
  if (args.k.rows() > 0) do_append_kv_cache(args);
}

void Ops::attention(const AttentionArgs& args) {
  const char* op = "attention";
  check_heads(op, args.num_heads, args.num_kv_heads);
  check_head_dim(op, args.head_dim, head_dim_multiple());
  const int64_t q_columns = int64_t{args.num_heads} * args.head_dim;
  const int64_t kv_columns = int64_t{args.num_kv_heads} * args.head_dim;
  check_compute_dtype(op, "q", args.q);
  check_matrix(op, "q", args.q, args.queries.num_tokens, q_columns);
  check_matrix(op, "out", args.out, args.queries.num_tokens, q_columns);
  const bool float8 = args.out.dtype == DType::kFloat8;
  if (float8 &&
      (args.pages || !(args.out_scale > 0) || !attention_writes_float8(args.head_dim, args.term))) {
    fail(op, concat("out is float8 with the scale ", args.out_scale,
                    ", for heads or a term for which this device does not have it"));
  }
  if (!float8) check_dtype_is(op, "out", args.out, args.q.dtype);
  check_batch(op, "queries", args.queries, args.q.rows());
  if (args.term.kind == ScoreTermKind::kAlibi && args.term.slopes == nullptr) {
    fail(op, "ALiBi needs slopes");
  }
  if (args.pages) {
    check_paged_attention(op, args);
    if (args.q.rows() > 0) do_paged_attention(args);
    return;
  }
  if (args.soft_cap != 0) {
    fail(op, concat("soft_cap is ", args.soft_cap, " without pages, expected 0"));
  }
  check_matrix(op, "k", args.k, args.keys.num_tokens, kv_columns);
  check_matrix(op, "v", args.v, args.keys.num_tokens, kv_columns);
  for (auto [name, view] : {std::pair{"k", &args.k}, {"v", &args.v}}) {
    check_dtype_is(op, name, *view, args.q.dtype);
  }
  check_batch(op, "keys", args.keys, args.k.rows());
  if (args.queries.num_sequences != args.keys.num_sequences) {
    fail(op, concat("queries have ", args.queries.num_sequences, " sequences, keys ",
                    args.keys.num_sequences));
  }
  const ScoreTerm& term = args.term;
  const int32_t side_buckets = term.bidirectional ? term.num_buckets / 2 : term.num_buckets;
  if (term.kind == ScoreTermKind::kBucketed &&
      (term.table == nullptr || side_buckets < 2 || term.max_distance <= side_buckets / 2)) {
    fail(op, concat("a bucketed term needs a table, at least ", term.bidirectional ? 4 : 2,
                    " buckets (found ", term.num_buckets, ") and a max_distance over ",
                    term.bidirectional ? "a quarter" : "half", " of them (found ",
                    term.max_distance, ")"));
  }
  // Backends visit every distance to find where buckets begin, so the distance must be limited.
  constexpr int32_t kMostDistance = 1 << 24;
  if (term.kind == ScoreTermKind::kBucketed && term.max_distance > kMostDistance) {
    fail(op, concat("max_distance is ", term.max_distance, ", expected at most ", kMostDistance));
  }
  if (args.term.kind == ScoreTermKind::kDisentangled) {
    for (auto [name, table] : {std::pair{"position_keys", &args.term.position_keys},
                               {"position_queries", &args.term.position_queries}}) {
      if (!*table) continue;
      check_matrix(op, name, *table, table->rows(), q_columns);
      check_dtype_is(op, name, *table, args.q.dtype);
    }
    if (args.term.slots == nullptr || args.num_heads != args.num_kv_heads) {
      fail(op, "a disentangled term needs slots, and as many key heads as query heads");
    }
  }
  if (args.q.rows() > 0) do_attention(args);
}

}  // namespace packhorse
