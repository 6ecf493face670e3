// Checks of attention and of the rotation of heads.
#include <cmath>
#include <utility>

#include "core/format.h"
#include "ops/checks.h"
#include "ops/ops.h"

namespace packhorse {
namespace {

// Refuses what attention over pages does not compute.
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
  const AttentionMask& mask = args.mask;
  const bool none = args.term.kind == ScoreTermKind::kNone;
  if (!mask.causal && (mask.window_left >= 0 || mask.window_right >= 0 || !none)) {
    fail(op, "a mask over pages that is not causal has a window or a term, expected neither");
  }
  if (args.term.kind == ScoreTermKind::kDisentangled) {
    fail(op, "a disentangled term was asked for over pages, expected another one or none");
  }
  if (args.term.kind == ScoreTermKind::kGrid) {
    fail(op, "a term of grids was asked for over pages, expected another one or none");
  }
  if (args.term.kind == ScoreTermKind::kBucketed &&
      (args.term.by_distance == nullptr || args.term.max_distance <= 0)) {
    fail(op, "a bucketed term over pages has no numbers by distance, expected some");
  }
  if (!(args.soft_cap >= 0) || !std::isfinite(args.soft_cap)) {
    fail(op, concat("soft_cap is ", args.soft_cap, ", expected a positive number, or 0 for none"));
  }
}

void check_qkv_rope(const LinearArgs& args, const RopeArgs& heads, const Ops& ops) {
  const char* op = "qkv_rope";
  check_head_dim(op, heads.head_dim, ops.head_dim_multiple());
  check_linear(op, args);
  check_rotated_heads(op, heads, args.x.rows(), ops.rotation_columns(heads.dims, heads.grid));
  const char* out = args.out.as<char>();
  if (heads.q.data != out ||
      heads.k.data != out + static_cast<size_t>(heads.q.columns()) * size_of(args.out.dtype)) {
    fail(op, "q and k are not the first columns of out");
  }
}

}  // namespace

void Ops::rotation(const RotationArgs& args) {
  const char* op = "rotation";
  if (args.dims <= 0 || args.dims % 2 != 0 || args.frequencies == nullptr) {
    fail(op, concat("dims is ", args.dims, ", expected two for each frequency"));
  }
  const bool grid = args.grids != nullptr;
  if (grid && (args.dims % 4 != 0 || args.prefix < 0)) {
    fail(op, concat("dims is ", args.dims, " over a grid behind ", args.prefix,
                    " rows, expected a multiple of 4 behind at least 0"));
  }
  check_matrix(op, "out", args.out, args.batch.num_tokens, rotation_columns(args.dims, grid));
  check_dtype_is(op, "out", args.out, DType::kFloat32);
  check_batch(op, "batch", args.batch, args.out.rows());
  if (args.out.rows() > 0) do_rotation(args);
}

void Ops::rope(const RopeArgs& args) {
  const char* op = "rope";
  check_head_dim(op, args.head_dim, head_dim_multiple());
  check_compute_dtype(op, "q", args.q);
  check_dtype_is(op, "k", args.k, args.q.dtype);
  check_rotated_heads(op, args, args.q.rows(), rotation_columns(args.dims, args.grid));
  if (args.q.rows() > 0) do_rope(args);
}

void Ops::qkv_rope(const LinearArgs& args, const RopeArgs& heads) {
  check_qkv_rope(args, heads, *this);
  if (args.x.rows() > 0) do_qkv_rope(args, heads);
}

void Ops::qkv_rope(const LinearArgs& args, const RopeArgs& heads, const LoraArgs& lora) {
  const char* op = "qkv_rope";
  check_qkv_rope(args, heads, *this);
  check_lora(op, lora);
  if (lora.out.data != args.out.data) fail(op, "lora.out is not out");
  if (args.x.rows() > 0) do_qkv_rope(args, heads, lora);
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
  if (term.kind == ScoreTermKind::kGrid &&
      (term.table == nullptr || term.grid_rows < 1 || term.grid_columns < 1 ||
       (term.grids == nullptr && args.q.rows() > 0) || args.mask.causal ||
       args.mask.window_left >= 0 || args.mask.window_right >= 0)) {
    fail(op, concat("a term of grids needs a table (found ", term.grid_rows, " x ",
                    term.grid_columns, " cells), the grids of the batch, and no mask"));
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

void Ops::attention_weights(const AttentionWeightsArgs& args) {
  const char* op = "attention_weights";
  check_heads(op, args.num_heads, args.num_kv_heads);
  check_head_dim(op, args.head_dim, head_dim_multiple());
  if (args.head_dim > kMostWeightsColumns) {
    fail(op, concat("head_dim is ", args.head_dim, ", expected at most ", kMostWeightsColumns));
  }
  check_compute_dtype(op, "q", args.q);
  check_matrix(op, "q", args.q, args.q.rows(), int64_t{args.num_heads} * args.head_dim);
  const BatchView one = {.num_tokens = args.q.rows(), .num_sequences = args.sequence + 1};
  check_pages(op, args.pages, one, args.num_kv_heads, args.head_dim);
  check_dtype_is(op, "out", args.out, DType::kFloat32);
  check_matrix(op, "out", args.out, args.q.rows(), args.num_keys);
  if (args.sequence < 0 || args.head < 0 || args.head >= args.num_heads) {
    fail(op, concat("sequence ", args.sequence, ", head ", args.head,
                    ", expected 0 or more, and a head below ", args.num_heads));
  }
  if (args.num_keys < 1 || args.num_keys > args.pages.max_kv_len) {
    fail(op, concat("num_keys is ", args.num_keys, ", expected 1 to ", args.pages.max_kv_len));
  }
  if (args.q.rows() > 0) do_attention_weights(args);
}

}  // namespace packhorse
