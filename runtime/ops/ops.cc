#include "ops/ops.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "core/format.h"
#include "packhorse/error.h"

namespace packhorse {
namespace {

[[noreturn]] void refuse_mixtures() {
  throw RuntimeError(
      "this device does not compute mixtures of experts (ffn.kind 'mixture' of a spec); the CPU "
      "does");
}

[[noreturn]] void refuse_convolutions() {
  throw RuntimeError(
      "this device does not compute compressed convolutional attention (attention.kind "
      "'compressed' of a spec); the CPU does");
}

// The message of a failed check names the operator, the argument, what was found and what was
// expected.
[[noreturn]] void fail(const char* op, const std::string& what) {
  throw InvalidArgument(concat(op, ": ", what));
}

void check_matrix(const char* op, const char* name, const TensorView& view, int64_t rows,
                  int64_t columns) {
  if (view.rank == 2 && view.shape[0] == rows && view.shape[1] == columns &&
      (view.data != nullptr || view.size() == 0)) {
    return;
  }
  fail(op, concat(name, " is ", view.describe(), ", expected [", rows, ", ", columns, "]"));
}

void check_contiguous(const char* op, const char* name, const TensorView& view) {
  if (view.row_stride == view.columns() || view.rows() <= 1) return;
  fail(op,
       concat(name, " has rows ", view.row_stride, " elements apart, expected ", view.columns()));
}

void check_dtype_is(const char* op, const char* name, const TensorView& view, DType expected) {
  if (view.dtype != expected) {
    fail(op, concat(name, " is ", name_of(view.dtype), ", expected ", name_of(expected)));
  }
}

void check_compute_dtype(const char* op, const char* name, const TensorView& view) {
  if (view.dtype != DType::kFloat32 && view.dtype != DType::kFloat16 &&
      view.dtype != DType::kBFloat16) {
    fail(op,
         concat(name, " is ", name_of(view.dtype), ", expected one of float32, float16, bfloat16"));
  }
}

// `dtype` is the dtype of the input. With quantised weights it may be any dtype that the backend
// computes in.
void check_weight(const char* op, const char* name, const LinearWeight& weight, int64_t in_features,
                  DType dtype) {
  if (weight.data == nullptr || weight.out_features <= 0) fail(op, concat(name, " is missing"));
  if (weight.in_features != in_features) {
    fail(op, concat(name, " takes ", weight.in_features, " features, the input has ", in_features));
  }
  if (weight.dtype != DType::kInt8 && !weight.groups && dtype != weight.dtype) {
    fail(op, concat(name, " is ", name_of(weight.dtype), ", the input is ", name_of(dtype)));
  }
}

// Checks `residual` and `out` of linear and feed_forward: [rows, columns] in the input's dtype.
void check_result(const char* op, const TensorView& residual, const TensorView& out, int64_t rows,
                  int64_t columns, DType dtype) {
  check_matrix(op, "out", out, rows, columns);
  check_dtype_is(op, "out", out, dtype);
  if (residual) {
    check_matrix(op, "residual", residual, rows, columns);
    check_dtype_is(op, "residual", residual, dtype);
  }
}

void check_heads(const char* op, int64_t num_heads, int64_t num_kv_heads) {
  if (num_heads > 0 && num_kv_heads > 0 && num_heads % num_kv_heads == 0) return;
  fail(op, concat("num_heads ", num_heads, " is not a multiple of num_kv_heads ", num_kv_heads));
}

void check_head_dim(const char* op, int64_t head_dim, int64_t multiple) {
  if (head_dim > 0 && head_dim % multiple == 0) return;
  fail(op, concat("head_dim ", head_dim, " is not a positive multiple of ", multiple,
                  ", as this device needs"));
}

void check_linear(const char* op, const LinearArgs& args) {
  check_compute_dtype(op, "x", args.x);
  check_weight(op, "weight", args.weight, args.x.columns(), args.x.dtype);
  check_result(op, args.residual, args.out, args.x.rows(), args.weight.out_features, args.x.dtype);
}

void check_batch(const char* op, const char* name, const BatchView& batch, int64_t rows) {
  if (batch.num_tokens != rows) {
    fail(op, concat(name, " has ", batch.num_tokens, " tokens, the tensor ", rows, " rows"));
  }
  if (batch.num_sequences < 0 || (batch.num_sequences > 0 && batch.cu_seqlens == nullptr)) {
    fail(op, concat(name, " has ", batch.num_sequences, " sequences and no cu_seqlens"));
  }
}

// Rows of queries, keys or both, and what turns them.
void check_rotated_heads(const char* op, const RotateHeadsArgs& heads, int64_t rows,
                         int64_t rotation_columns) {
  check_matrix(op, "q", heads.q, rows, int64_t{heads.num_heads} * heads.head_dim);
  check_matrix(op, "k", heads.k, rows, int64_t{heads.num_kv_heads} * heads.head_dim);
  if (heads.model_dim <= 0 || heads.model_dim > heads.head_dim) {
    fail(op, concat("model_dim is ", heads.model_dim, ", expected 1 to head_dim ", heads.head_dim));
  }
  if (!heads.rotation) return;
  check_matrix(op, "rotation", heads.rotation, rows, rotation_columns);
  check_dtype_is(op, "rotation", heads.rotation, DType::kFloat32);
  if (heads.dims <= 0 || heads.dims > heads.model_dim || heads.dims % 2 != 0) {
    fail(op, concat("dims is ", heads.dims, ", expected an even number up to ", heads.model_dim));
  }
}

void check_convolutions(const char* op, const ConvolveHeadsArgs& args) {
  for (auto [name, width] : {std::pair{"depthwise_width", args.depthwise_width},
                             {"grouped_width", args.grouped_width}}) {
    if (width >= 1 && width <= kMostConvolved) continue;
    fail(op, concat(name, " is ", width, ", expected 1 to ", kMostConvolved));
  }
  const int64_t heads = int64_t{args.num_heads} + args.num_kv_heads;
  check_matrix(op, "grouped", args.grouped, heads * args.grouped_width * args.head_dim,
               args.head_dim);
  check_contiguous(op, "grouped", args.grouped);
  check_dtype_is(op, "grouped", args.grouped, args.latents.dtype);
  if (args.depthwise == nullptr || args.depthwise_bias == nullptr || args.grouped_bias == nullptr ||
      args.temperature == nullptr) {
    fail(op, "a weight, a bias or the temperature is missing");
  }
  if (args.delayed_column < 0 || args.delayed_column > args.value_columns()) {
    fail(op, concat("delayed_column is ", args.delayed_column, ", expected 0 to ",
                    args.value_columns(), ", the columns of values"));
  }
}

void check_latent_pages(const char* op, const ConvolveHeadsArgs& args) {
  const LatentPages& pages = args.pages;
  const int64_t fewest = std::max<int64_t>(1, args.reach());
  if (pages.slots < fewest || pages.slots > kPageTokens) {
    fail(op, concat("pages.slots is ", pages.slots, ", expected ", fewest, " to ", kPageTokens));
  }
  check_matrix(op, "pages.rows", pages.rows, pages.rows.rows(), args.state_columns());
  check_dtype_is(op, "pages.rows", pages.rows, args.latents.dtype);
  if (args.batch.num_tokens > 0 && (pages.table == nullptr || pages.kv_lens == nullptr)) {
    fail(op, "pages have no table or no kv_lens");
  }
}

void check_pages(const char* op, const KvPages& pages, const BatchView& batch, int64_t num_kv_heads,
                 int64_t head_dim) {
  const int64_t page_rows = num_kv_heads * kPageTokens;
  for (auto [name, view] :
       {std::pair{"pages.keys", &pages.keys}, {"pages.values", &pages.values}}) {
    check_compute_dtype(op, name, *view);
    check_dtype_is(op, name, *view, pages.keys.dtype);
    check_matrix(op, name, *view, pages.keys.rows(), head_dim);
    check_contiguous(op, name, *view);
    if (view->rows() % page_rows != 0) {
      fail(op, concat(name, " has ", view->rows(), " rows, expected a multiple of ", page_rows,
                      ": ", kPageTokens, " for each of ", num_kv_heads, " heads"));
    }
  }
  if (pages.max_kv_len < 0 || pages.max_kv_len > pages.table_stride * kPageTokens) {
    fail(op, concat("pages.max_kv_len is ", pages.max_kv_len, ", expected 0 to ",
                    pages.table_stride * kPageTokens, ", what ", pages.table_stride,
                    " pages of the table hold"));
  }
  if (batch.num_tokens > 0 && (pages.table == nullptr || pages.kv_lens == nullptr)) {
    fail(op, concat("pages have no ", pages.table == nullptr ? "table" : "kv_lens", " for ",
                    batch.num_sequences, " sequences"));
  }
}

// What attention over pages can be asked for.
void check_append_kv(const char* op, const AppendKvArgs& args) {
  const int64_t columns = int64_t{args.num_kv_heads} * args.head_dim;
  check_compute_dtype(op, "k", args.k);
  check_dtype_is(op, "v", args.v, args.k.dtype);
  check_matrix(op, "k", args.k, args.batch.num_tokens, columns);
  check_matrix(op, "v", args.v, args.batch.num_tokens, columns);
  check_batch(op, "batch", args.batch, args.k.rows());
  check_pages(op, args.pages, args.batch, args.num_kv_heads, args.head_dim);
}

void check_paged_attention(const char* op, const AttentionArgs& args) {
  if (args.keys.num_tokens != 0) fail(op, "keys of their own beside pages, expected none");
  if (static_cast<bool>(args.k) != static_cast<bool>(args.v)) {
    fail(op, "one of k and v is given beside pages, expected both or none");
  }
  if (args.k) {
    check_append_kv(op, appended(args));
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

void check_project_heads(const LinearArgs& args, const RotateHeadsArgs& heads, const Ops& ops) {
  const char* op = "project_heads";
  check_head_dim(op, heads.head_dim, ops.head_dim_multiple());
  check_linear(op, args);
  check_rotated_heads(op, heads, args.x.rows(), ops.rotation_columns(heads.dims));
  const char* out = args.out.as<char>();
  if (heads.q.data != out ||
      heads.k.data != out + static_cast<size_t>(heads.q.columns()) * size_of(args.out.dtype)) {
    fail(op, "q and k are not the first columns of out");
  }
}

void check_lora(const char* op, const LoraArgs& args) {
  const LoraLayer& layer = args.layer;
  const int64_t rows = args.x.rows();
  check_compute_dtype(op, "x", args.x);
  if (layer.num_parts < 1 || layer.max_rank < 1 || layer.b.rows() % layer.max_rank != 0) {
    fail(op, concat("layer has ", layer.num_parts, " parts of rank ", layer.max_rank,
                    " at most, b ", layer.b.rows(), " rows; expected some for each slot"));
  }
  check_matrix(op, "a", layer.a, layer.b.rows() * layer.num_parts, args.x.columns());
  check_matrix(op, "out", args.out, rows, layer.b.columns());
  for (auto [name, view] : {std::pair{"a", &layer.a}, {"b", &layer.b}, {"out", &args.out}}) {
    check_dtype_is(op, name, *view, args.x.dtype);
  }
  check_contiguous(op, "a", layer.a);
  check_contiguous(op, "b", layer.b);
  if (layer.num_parts > 1 && (layer.parts == nullptr || layer.b.columns() % kPartColumns != 0)) {
    fail(op, concat("a layer of ", layer.num_parts, " parts needs `parts`, and a multiple of ",
                    kPartColumns, " columns; found ", layer.b.columns()));
  }
  if (rows > 0 && (args.slots == nullptr || layer.ranks == nullptr || args.workspace == nullptr)) {
    fail(op, "slots, ranks or workspace are missing");
  }
}

}  // namespace

void Ops::embed(const EmbedArgs& args) {
  const char* op = "embed";
  const int64_t hidden_size = args.word.columns();
  const int64_t tokens = args.batch.num_tokens;
  check_compute_dtype(op, "word", args.word);
  check_matrix(op, "out", args.out, tokens, hidden_size);
  check_dtype_is(op, "out", args.out, args.word.dtype);
  check_batch(op, "batch", args.batch, tokens);
  for (auto [name, table] : {std::pair{"position", &args.position}, {"type", &args.type}}) {
    if (!*table) continue;
    check_matrix(op, name, *table, table->rows(), hidden_size);
    check_dtype_is(op, name, *table, args.word.dtype);
  }
  if (args.position && (args.position_offset < 0 || args.position_offset > args.position.rows())) {
    fail(op, concat("position_offset is ", args.position_offset, ", expected 0 to ",
                    args.position.rows(), ", the rows of position"));
  }
  if (tokens == 0) return;
  if (args.ids == nullptr && args.word.rows() != tokens) {
    fail(op, concat("ids are missing for ", tokens, " tokens, and word has ", args.word.rows(),
                    " rows"));
  }
  do_embed(args);
}

void Ops::linear(const LinearArgs& args) {
  check_linear("linear", args);
  if (args.x.rows() > 0) do_linear(args);
}

void Ops::feed_forward(const FeedForwardArgs& args) {
  const char* op = "feed_forward";
  check_compute_dtype(op, "x", args.x);
  check_weight(op, "up", args.up, args.x.columns(), args.x.dtype);
  if (args.gated && args.up.out_features % (2 * kGateBlock) != 0) {
    fail(op, concat("a gated up has ", args.up.out_features, " features, expected a multiple of ",
                    2 * kGateBlock));
  }
  check_weight(op, "down", args.down, args.up.out_features / (args.gated ? 2 : 1), args.x.dtype);
  if (args.up.dtype != args.down.dtype) {
    fail(op, concat("up is ", name_of(args.up.dtype), ", down is ", name_of(args.down.dtype)));
  }
  check_result(op, args.residual, args.out, args.x.rows(), args.down.out_features, args.x.dtype);
  if (args.x.rows() > 0) do_feed_forward(args);
}

void Ops::neighbours(const NeighboursArgs& args) {
  const char* op = "neighbours";
  check_compute_dtype(op, "x", args.x);
  check_matrix(op, "x", args.x, args.batch.num_tokens, args.x.columns());
  check_batch(op, "batch", args.batch, args.x.rows());
  if (args.width < 1 || args.width % 2 == 0) {
    fail(op, concat("width is ", args.width, ", expected an odd number"));
  }
  check_matrix(op, "out", args.out, args.x.rows(), args.width * args.x.columns());
  check_dtype_is(op, "out", args.out, args.x.dtype);
  if (args.x.rows() > 0) do_neighbours(args);
}

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

void Ops::project_heads(const LinearArgs& args, const RotateHeadsArgs& heads) {
  check_project_heads(args, heads, *this);
  if (args.x.rows() > 0) do_project_heads(args, heads);
}

void Ops::project_heads(const LinearArgs& args, const RotateHeadsArgs& heads,
                        const LoraArgs& lora) {
  const char* op = "project_heads";
  check_project_heads(args, heads, *this);
  check_lora(op, lora);
  if (lora.out.data != args.out.data) fail(op, "lora.out is not out");
  if (args.x.rows() > 0) do_project_heads(args, heads, lora);
}

void Ops::rotate_heads(const RotateHeadsArgs& args) {
  const char* op = "rotate_heads";
  check_head_dim(op, args.head_dim, head_dim_multiple());
  check_compute_dtype(op, "q", args.q);
  check_dtype_is(op, "k", args.k, args.q.dtype);
  check_rotated_heads(op, args, args.q.rows(), rotation_columns(args.dims));
  if (args.q.rows() > 0) do_rotate_heads(args);
}

void Ops::convolve_heads(const ConvolveHeadsArgs& args) {
  const char* op = "convolve_heads";
  check_heads(op, args.num_heads, args.num_kv_heads);
  check_head_dim(op, args.head_dim, head_dim_multiple());
  check_compute_dtype(op, "latents", args.latents);
  check_batch(op, "batch", args.batch, args.latents.rows());
  RotateHeadsArgs heads;
  heads.q = args.latents.column_slice(0, int64_t{args.num_heads} * args.head_dim);
  heads.k = args.latents.column_slice(heads.q.columns(), args.value_columns());
  heads.num_heads = args.num_heads;
  heads.num_kv_heads = args.num_kv_heads;
  heads.head_dim = args.head_dim;
  heads.model_dim = args.model_dim;
  heads.rotation = args.rotation;
  heads.dims = args.dims;
  check_matrix(op, "latents", args.latents, args.latents.rows(),
               args.mixed_columns() + args.value_columns());
  check_rotated_heads(op, heads, args.latents.rows(), rotation_columns(args.dims));
  check_convolutions(op, args);
  if (args.pages) check_latent_pages(op, args);
  check_matrix(op, "out", args.out, args.latents.rows(), args.latents.columns());
  check_dtype_is(op, "out", args.out, args.latents.dtype);
  if (args.latents.rows() > 0) do_convolve_heads(args);
}

size_t Ops::convolve_heads_workspace(const ConvolveHeadsArgs&) const { refuse_convolutions(); }

void Ops::do_convolve_heads(const ConvolveHeadsArgs&) { refuse_convolutions(); }

void Ops::append_kv(const AppendKvArgs& args) {
  const char* op = "append_kv";
  if (args.num_kv_heads <= 0) {
    fail(op, concat("num_kv_heads is ", args.num_kv_heads, ", expected a positive number"));
  }
  check_head_dim(op, args.head_dim, head_dim_multiple());
  check_append_kv(op, args);
  if (args.k.rows() > 0) do_append_kv(args);
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
  check_dtype_is(op, "out", args.out, args.q.dtype);
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

void Ops::norm(const NormArgs& args) {
  const char* op = "norm";
  check_compute_dtype(op, "x", args.x);
  if (!args.norm) fail(op, "gamma is missing");
  if (args.added) {
    check_matrix(op, "added", args.added, args.x.rows(), args.x.columns());
    check_dtype_is(op, "added", args.added, args.x.dtype);
  }
  check_result(op, args.residual, args.out, args.x.rows(), args.x.columns(), args.x.dtype);
  if (args.x.rows() > 0) do_norm(args);
}

void Ops::pool(const PoolArgs& args) {
  const char* op = "pool";
  check_compute_dtype(op, "x", args.x);
  check_matrix(op, "x", args.x, args.batch.num_tokens, args.x.columns());
  check_batch(op, "batch", args.batch, args.x.rows());
  check_matrix(op, "out", args.out, args.batch.num_sequences, args.x.columns());
  if (args.out.dtype != DType::kFloat32) check_dtype_is(op, "out", args.out, args.x.dtype);
  if (args.batch.num_sequences > 0) do_pool(args);
}

void Ops::sparse_pool(const SparsePoolArgs& args) {
  const char* op = "sparse_pool";
  check_compute_dtype(op, "x", args.x);
  check_matrix(op, "x", args.x, args.batch.num_tokens, args.x.columns());
  check_contiguous(op, "x", args.x);
  check_batch(op, "batch", args.batch, args.x.rows());
  check_weight(op, "weight", args.weight, args.x.columns(), args.x.dtype);
  check_matrix(op, "out", args.out, args.batch.num_sequences, args.out.columns());
  check_contiguous(op, "out", args.out);
  check_dtype_is(op, "out", args.out, DType::kFloat32);
  if (args.out.columns() > args.weight.out_features) {
    fail(op, concat("out has ", args.out.columns(), " columns, weight gives ",
                    args.weight.out_features));
  }
  if (args.out.size() > 0) do_sparse_pool(args);
}

void Ops::cast(const CastArgs& args) {
  const char* op = "cast";
  check_compute_dtype(op, "x", args.x);
  check_compute_dtype(op, "out", args.out);
  check_matrix(op, "out", args.out, args.x.rows(), args.x.columns());
  if (args.normalize && (args.scale != 1 || args.soft_cap != 0)) {
    fail(op, "rows that are normalised have neither scale nor soft_cap");
  }
  if (!(args.soft_cap >= 0))
    fail(op, concat("soft_cap is ", args.soft_cap, ", expected 0 or more"));
  if (args.x.rows() > 0) do_cast(args);
}

void Ops::gather_rows(const GatherRowsArgs& args) {
  const char* op = "gather_rows";
  check_compute_dtype(op, "x", args.x);
  check_contiguous(op, "x", args.x);
  check_contiguous(op, "out", args.out);
  check_matrix(op, "out", args.out, args.rows == nullptr ? args.x.rows() : args.out.rows(),
               args.x.columns());
  check_dtype_is(op, "out", args.out, args.x.dtype);
  if (args.out.size() > 0) do_gather_rows(args);
}

void Ops::clear_empty(const ClearEmptyArgs& args) {
  const char* op = "clear_empty";
  check_matrix(op, "out", args.out, args.batch.num_sequences, args.out.columns());
  check_contiguous(op, "out", args.out);
  check_batch(op, "batch", args.batch, args.batch.num_tokens);
  if (args.out.size() > 0) do_clear_empty(args);
}

void Ops::sample(const SampleArgs& args) {
  const char* op = "sample";
  const int64_t vocab_size = args.logits.columns();
  check_dtype_is(op, "logits", args.logits, DType::kFloat32);
  if (args.logits.rows() == 0) return;
  if (vocab_size < 1 || vocab_size > kMostVocabSize) {
    fail(op, concat("logits has ", vocab_size, " columns, expected 1 to ", kMostVocabSize));
  }
  if (args.num_top < 0 || args.num_top > kMostTopTokens) {
    fail(op, concat("num_top is ", args.num_top, ", expected 0 to ", kMostTopTokens));
  }
  if (args.counts) {
    check_dtype_is(op, "counts", args.counts, DType::kInt32);
    check_matrix(op, "counts", args.counts, args.counts.rows(), vocab_size);
  }
  if (args.rows == nullptr || args.tokens == nullptr || args.workspace == nullptr ||
      (args.wants_logprobs && args.logprobs == nullptr) ||
      (args.num_top > 0 && (args.top_tokens == nullptr || args.top_logprobs == nullptr))) {
    fail(op, "rows, workspace or a result is missing");
  }
  do_sample(args);
}

void Ops::count_tokens(const CountTokensArgs& args) {
  const char* op = "count_tokens";
  check_dtype_is(op, "counts", args.counts, DType::kInt32);
  if (args.num_tokens > 0 && (args.ids == nullptr || args.slots == nullptr)) {
    fail(op, "ids or slots are missing");
  }
  if (args.num_tokens > 0 || args.num_clear > 0) do_count_tokens(args);
}

void Ops::begin_step(const BeginStepArgs& args) {
  const char* op = "begin_step";
  check_batch(op, "batch", args.batch, args.batch.num_tokens);
  if (args.batch.num_sequences == 0) return;
  check_dtype_is(op, "counts", args.counts, DType::kInt32);
  if (args.ids == nullptr || args.sources == nullptr || args.tokens == nullptr ||
      args.count_slots == nullptr || args.page_begins == nullptr || args.pages == nullptr ||
      args.table == nullptr) {
    fail(op, "an input or the table is missing");
  }
  do_begin_step(args);
}

void Ops::add_lora(const LoraArgs& args) {
  check_lora("add_lora", args);
  if (args.x.rows() > 0) do_add_lora(args);
}

void Ops::feed_forward_up(const FeedForwardUpArgs& args) {
  const char* op = "feed_forward_up";
  const int64_t rows = args.x.rows();
  check_compute_dtype(op, "x", args.x);
  check_weight(op, "up", args.up, args.x.columns(), args.x.dtype);
  check_matrix(op, "out", args.out, rows, args.up.out_features / (args.gated ? 2 : 1));
  check_dtype_is(op, "out", args.out, args.x.dtype);
  if (args.gated) {
    check_matrix(op, "sums", args.sums, rows, args.up.out_features);
    check_dtype_is(op, "sums", args.sums, args.x.dtype);
  }
  if (rows > 0) do_feed_forward_up(args);
}

void Ops::activate(const ActivateArgs& args) {
  const char* op = "activate";
  check_compute_dtype(op, "x", args.x);
  check_contiguous(op, "x", args.x);
  check_contiguous(op, "out", args.out);
  check_matrix(op, "x", args.x, args.out.rows(), args.out.columns() * (args.gated ? 2 : 1));
  check_dtype_is(op, "out", args.out, args.x.dtype);
  if (args.x.rows() == 0) return;
  if (args.slots == nullptr || args.ranks == nullptr) fail(op, "slots or ranks are missing");
  do_activate(args);
}

void Ops::mixture(const MixtureArgs& args) {
  const char* op = "mixture";
  check_compute_dtype(op, "x", args.x);
  check_contiguous(op, "x", args.x);
  check_result(op, {}, args.out, args.x.rows(), args.x.columns(), args.x.dtype);
  check_compute_dtype(op, "logits", args.logits);
  check_matrix(op, "logits", args.logits, args.x.rows(), args.logits.columns());
  const auto experts = static_cast<int64_t>(args.experts.size());
  if (experts < 1 || args.num_classes < experts || args.num_classes > args.logits.columns() ||
      args.balance == nullptr) {
    fail(op, concat(experts, " experts, ", args.num_classes, " classes, logits with ",
                    args.logits.columns(), " columns, expected no more of one than of the next, ",
                    "and their balance"));
  }
  for (const ExpertWeights& expert : args.experts) {
    check_weight(op, "up", expert.up, args.x.columns(), args.x.dtype);
    check_weight(op, "down", expert.down, expert.up.out_features / 2, args.x.dtype);
    if (expert.up.out_features % (2 * kGateBlock) != 0 ||
        expert.up.out_features != args.experts.front().up.out_features ||
        expert.down.out_features != args.x.columns()) {
      fail(op, concat("an expert of ", expert.up.out_features, " and ", expert.down.out_features,
                      " features, expected ", args.experts.front().up.out_features,
                      ", a multiple of ", 2 * kGateBlock, ", and ", args.x.columns()));
    }
  }
  if (args.x.rows() > 0) do_mixture(args);
}

size_t Ops::mixture_workspace(const MixtureArgs&) const { refuse_mixtures(); }

void Ops::do_mixture(const MixtureArgs&) { refuse_mixtures(); }

void Ops::add_scaled(const AddScaledArgs& args) {
  const char* op = "add_scaled";
  check_compute_dtype(op, "x", args.x);
  check_result(op, args.residual, args.out, args.x.rows(), args.x.columns(), args.x.dtype);
  if (args.x.rows() > 0) do_add_scaled(args);
}

void Ops::do_add_scaled(const AddScaledArgs&) {
  fail("add_scaled", "this device does not have it");
}

}  // namespace packhorse
