// Operators with dense layers, and what adapters add to them.
#include <utility>

#include "core/format.h"
#include "ops/checks.h"
#include "ops/ops.h"

namespace packhorse {
namespace {

void check_linear(const char* op, const LinearArgs& args) {
  const int64_t columns = args.weight.out_features;
  const DType dtype = check_dense_input(op, args.x, args.x_scales, args.out);
  check_weight(op, "weight", args.weight, args.x.columns(), args.x.dtype);
  check_result(op, args.residual, args.out, args.x.rows(), columns, dtype);
  check_quantized(op, args.quantized, args.x.rows(), columns, static_cast<bool>(args.norm));
}

void check_qkv_rope(const LinearArgs& args, const RopeArgs& heads, const Ops& ops) {
  const char* op = "qkv_rope";
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

void Ops::linear(const LinearArgs& args) {
  check_linear("linear", args);
  if (args.x.rows() > 0) do_linear(args);
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

void Ops::add_lora(const LoraArgs& args) {
  check_lora("add_lora", args);
  if (args.x.rows() > 0) do_add_lora(args);
}

void Ops::feed_forward(const FeedForwardArgs& args) {
  const char* op = "feed_forward";
  const int64_t rows = args.x.rows();
  const DType dtype = check_dense_input(op, args.x, args.x_scales, args.out);
  check_weight(op, "up", args.up, args.x.columns(), args.x.dtype);
  if (args.gated && args.up.out_features % (2 * kGateBlock) != 0) {
    fail(op, concat("a gated up has ", args.up.out_features, " features, expected a multiple of ",
                    2 * kGateBlock));
  }
  check_weight(op, "down", args.down, args.up.out_features / (args.gated ? 2 : 1), args.x.dtype);
  if (args.up.dtype != args.down.dtype) {
    fail(op, concat("up is ", name_of(args.up.dtype), ", down is ", name_of(args.down.dtype)));
  }
  if (args.x.dtype == DType::kFloat8 && !(args.inner_scale > 0)) {
    fail(op, concat("inner_scale is ", args.inner_scale, ", expected a positive number"));
  }
  check_result(op, args.residual, args.out, rows, args.down.out_features, dtype);
  check_quantized(op, args.quantized, rows, args.down.out_features, static_cast<bool>(args.norm));
  if (rows > 0) do_feed_forward(args);
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

}  // namespace packhorse
