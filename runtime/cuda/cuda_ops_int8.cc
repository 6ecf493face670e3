// The dense layers whose weights are int8: rows are quantised into the workspace, and multiplied as
// bytes. Results have the dtype of the inputs.
#include <algorithm>

#include "core/format.h"
#include "core/math.h"
#include "cuda/cuda_ops.h"
#include "cuda/device/caps.h"
#include "cuda/gemm/int8/int8.h"
#include "cuda/rowwise/rowwise.h"
#include "packhorse/error.h"

namespace packhorse::cuda {
namespace {

constexpr size_t kAlignment = 256;

size_t aligned(size_t bytes) { return round_up(bytes, kAlignment); }

/// Layout of quantised rows in a workspace: their bytes, scales and offsets.
struct QuantizedRows {
  QuantizedRows(void* at, int64_t rows, int64_t columns)
      : values(static_cast<uint8_t*>(at)),
        values_bytes(aligned(static_cast<size_t>(rows * padded_int8(columns)))),
        vector_bytes(aligned(static_cast<size_t>(rows) * sizeof(float))) {}
  float* scales() const { return reinterpret_cast<float*>(values + values_bytes); }
  float* offsets() const { return reinterpret_cast<float*>(values + values_bytes + vector_bytes); }
  size_t bytes() const { return values_bytes + 2 * vector_bytes; }

  uint8_t* values;
  size_t values_bytes, vector_bytes;
};

/// Layout of a feed-forward block's workspace: quantised rows of its input, and then of what is
/// between the layers; the result of the first layer; with a gate, the product.
struct BlockLayout {
  explicit BlockLayout(const FeedForwardArgs& args)
      : rows(args.x.rows()),
        element(size_of(args.out.dtype)),
        sums(std::max(QuantizedRows(nullptr, rows, args.x.columns()).bytes(),
                      QuantizedRows(nullptr, rows, args.down.in_features).bytes())),
        gated(sums + aligned(static_cast<size_t>(rows * args.up.out_features) * element)),
        bytes(args.gated
                  ? gated + aligned(static_cast<size_t>(rows * args.down.in_features) * element)
                  : gated) {}
  int64_t rows;
  size_t element;
  size_t sums, gated, bytes;  // offsets of the parts, and the size of all
};

}  // namespace

size_t CudaOps::int8_workspace(const LinearArgs& args) const {
  return QuantizedRows(nullptr, args.x.rows(), args.x.columns()).bytes();
}

size_t CudaOps::int8_workspace(const FeedForwardArgs& args) const {
  return BlockLayout(args).bytes;
}

void CudaOps::product_int8(const char* op, const LinearArgs& args) {
  check_compute(op, args.x.dtype);
  check_vectors(op, "x", args.x);
  check_vectors(op, "residual", args.residual);
  check_vectors(op, "out", args.out);
  check_int32(op, args.x, args.weight);
  if (args.workspace == nullptr) throw InvalidArgument(concat(op, ": workspace is missing"));
  const QuantizedRows rows(args.workspace, args.x.rows(), args.x.columns());
  const RowBytes bytes = {rows.values, rows.scales(), rows.offsets()};
  launch_quantize_rows(args.x, bytes, args.row_count, stream_);
  launch_gemm_int8(args, bytes, stream_);
}

void CudaOps::linear_int8(const LinearArgs& args) {
  product_int8("linear", args);
  if (args.norm) norm_in_place(args.out, args.norm, {}, args.row_count);
}

void CudaOps::feed_forward_int8(const FeedForwardArgs& args) {
  const char* op = "feed_forward";
  const BlockLayout layout(args);
  auto* workspace = static_cast<unsigned char*>(args.workspace);
  TensorView inner(workspace + layout.sums, args.x.dtype, layout.rows, args.up.out_features);
  product_int8(op, {.x = args.x,
                    .weight = args.up,
                    .activation = args.gated ? Activation::kNone : args.activation,
                    .residual = {},
                    .norm = {},
                    .out = inner,
                    .row_count = args.row_count,
                    .workspace = workspace});
  if (args.gated) {
    const TensorView gated(workspace + layout.gated, args.x.dtype, layout.rows,
                           args.down.in_features);
    do_activate({.x = inner,
                 .activation = args.activation,
                 .gated = true,
                 .out = gated,
                 .row_count = args.row_count});
    inner = gated;
  }
  product_int8(op, {.x = inner,
                    .weight = args.down,
                    .residual = args.residual,
                    .norm = {},
                    .out = args.out,
                    .row_count = args.row_count,
                    .workspace = workspace});
  if (args.norm) norm_in_place(args.out, args.norm, {}, args.row_count);
}

}  // namespace packhorse::cuda
