// Checks of dense layers.
#include "core/format.h"
#include "ops/checks.h"
#include "ops/ops.h"

namespace packhorse {

void check_linear(const char* op, const LinearArgs& args) {
  const int64_t columns = args.weight.out_features;
  const DType dtype = check_dense_input(op, args.x, args.x_scales, args.out);
  check_weight(op, "weight", args.weight, args.x.columns(), args.x.dtype);
  check_result(op, args.residual, args.out, args.x.rows(), columns, dtype);
  check_quantized(op, args.quantized, args.x.rows(), columns, static_cast<bool>(args.norm));
}

void Ops::linear(const LinearArgs& args) {
  check_linear("linear", args);
  if (args.x.rows() > 0) do_linear(args);
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
