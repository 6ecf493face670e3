// The operators of dense layers.
#include <algorithm>
#include <utility>

#include "cuda/cuda_ops.h"
#include "cuda/device/caps.h"
#include "cuda/device/check.h"
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/skinny/skinny.h"
#include "cuda/gemm/splitk/splitk_cluster.h"
#include "cuda/gemm/w4a16/w4a16.h"
#include "cuda/rowwise/rowwise.h"
#include "cuda/rowwise/sparse_pool.h"
#include "packhorse/error.h"

namespace packhorse::cuda {
namespace {

// A dense layer without its norm, for the kernels. If x and the weight are kFloat8, `out` is
// 16-bit, or kFloat8 with the scale `out_scale`.
GemmParams gemm_params(const char* op, const LinearArgs& args, int sm_count, float out_scale = 0) {
  const LinearWeight& weight = args.weight;
  const bool float8 = args.x.dtype == DType::kFloat8;
  if (!float8) check_compute(op, args.x.dtype);
  if (float8 && args.out.dtype != DType::kFloat8) check_compute(op, args.out.dtype);
  if (weight.groups && args.x.dtype != DType::kFloat16) {
    throw InvalidArgument(
        concat(op, ": x is ", name_of(args.x.dtype), ", weights in groups take float16 on CUDA"));
  }
  check_vectors(op, "x", args.x);
  check_vectors(op, "residual", args.residual);
  check_vectors(op, "out", args.out);
  check_int32(op, args.x, weight);
  GemmParams params;
  params.a = args.x.data;
  params.lda = args.x.row_stride;
  params.weight = weight.data;
  params.bias = weight.bias;
  params.residual = args.residual.data;
  params.ldr = args.residual.row_stride;
  params.out = args.out.data;
  params.ldo = args.out.row_stride;
  params.rows = static_cast<int32_t>(args.x.rows());
  params.row_count = args.row_count;
  params.n = static_cast<int32_t>(weight.out_features);
  params.k = static_cast<int32_t>(weight.in_features);
  params.dtype = float8 ? args.out.dtype : args.x.dtype;
  params.activation = args.activation;
  params.sm_count = sm_count;
  params.groups = weight.groups;
  if (float8) {
    const auto* packed = static_cast<const unsigned char*>(weight.data);
    params.float8.column_scales = reinterpret_cast<const float*>(
        packed + float8_scales_offset(weight.in_features, weight.out_features));
    params.float8.row_scales = args.x_scales.rows;
    params.float8.a_scale = args.x_scales.tensor;
    if (args.out.dtype == DType::kFloat8) params.float8.out_factor = 1 / out_scale;
  } else if (weight.skinny && !weight.groups) {
    params.parts = split_k(params.n, params.k, sm_count);
  }
  return params;
}

// The two products of a feed-forward block.
LinearArgs up_of(const FeedForwardArgs& args, const TensorView& x, const TensorView& out,
                 Activation activation) {
  return {.x = x,
          .weight = args.up,
          .activation = activation,
          .residual = {},
          .norm = {},
          .out = out,
          .row_count = args.row_count,
          .x_scales = args.x_scales};
}
LinearArgs down_of(const FeedForwardArgs& args, const TensorView& x) {
  return {.x = x,
          .weight = args.down,
          .residual = args.residual,
          .norm = {},
          .out = args.out,
          .row_count = args.row_count,
          .x_scales = {nullptr, args.inner_scale}};
}

// The bytes of the input of a layer with its columns in the layer's order, where that has one.
size_t ordered_bytes(const TensorView& x, const LinearWeight& weight) {
  if (!weight.groups.ordered) return 0;
  return static_cast<size_t>(x.rows() * weight.in_features) * size_of(x.dtype);
}

}  // namespace

size_t CudaOps::linear_workspace(const LinearArgs& args) const {
  return args.weight.dtype == DType::kInt8 ? int8_workspace(args)
                                           : ordered_bytes(args.x, args.weight);
}

size_t CudaOps::feed_forward_workspace(const FeedForwardArgs& args) const {
  if (args.up.dtype == DType::kInt8) return int8_workspace(args);
  return inner_bytes(args) +
         std::max(ordered_bytes(args.x, args.up), ordered_bytes(args.x, args.down));
}

size_t CudaOps::inner_bytes(const FeedForwardArgs& args) const {
  // The portable kernels write gate and up side by side, and then their product.
  const int parts = args.gated && gemm_kernels_ != GemmKernels::kSm90 ? 3 : 1;
  return static_cast<size_t>(args.x.rows() * args.down.in_features) * size_of(args.x.dtype) * parts;
}

size_t CudaOps::sparse_pool_workspace(const SparsePoolArgs& args) const {
  if (pools_in_gemm(args.sum)) return 0;
  return static_cast<size_t>(std::min(args.x.rows(), kSparsePoolRows) * args.weight.out_features) *
         size_of(args.x.dtype);
}

void CudaOps::do_linear(const LinearArgs& args) {
  const DeviceGuard guard(device_);
  if (args.weight.dtype == DType::kInt8) return linear_int8(args);
  gemm(gemm_params("linear", in_order("linear", args), stream_.caps.sm_count));
  if (args.norm) norm_in_place(args.out, args.norm, args.quantized, args.row_count);
}

bool CudaOps::rotates_in_gemm(const LinearArgs& args, const RopeArgs& heads) const {
  return gemm_kernels_ == GemmKernels::kSm90 && args.weight.dtype != DType::kInt8 &&
         !heads.q_norm && !heads.k_norm && !heads.grid;
}

void CudaOps::do_qkv_rope(const LinearArgs& args, const RopeArgs& heads) {
  if (!rotates_in_gemm(args, heads)) {
    do_linear(args);
    return do_rope(heads);
  }
  const DeviceGuard guard(device_);
  GemmParams params = gemm_params("qkv_rope", in_order("qkv_rope", args), stream_.caps.sm_count);
  params.rotation.positions = static_cast<const float*>(heads.rotation.data);
  params.rotation.frequencies = heads.frequencies;
  params.rotation.dims = heads.dims;
  params.rotation.head_dim = heads.head_dim;
  params.rotation.columns = (heads.num_heads + heads.num_kv_heads) * heads.head_dim;
  gemm(params);
}

void CudaOps::do_qkv_rope(const LinearArgs& args, const RopeArgs& heads, const LoraArgs& lora) {
  if (!rotates_in_gemm(args, heads)) {
    do_linear(args);
    do_add_lora(lora);
    return do_rope(heads);
  }
  // The product is rotated before it is rounded, and so is what is added to it.
  do_qkv_rope(args, heads);
  add_lora("qkv_rope", lora, heads);
}

void CudaOps::do_feed_forward_up(const FeedForwardUpArgs& args) {
  const char* op = "feed_forward_up";
  if (args.up.dtype == DType::kInt8) {
    throw InvalidArgument("feed_forward_up: CUDA has no adapters beside int8 weights");
  }
  const DeviceGuard guard(device_);
  const bool fused = args.gated && gemm_kernels_ == GemmKernels::kSm90;
  const bool apart = args.gated && !fused;
  GemmParams up =
      gemm_params(op,
                  in_order(op, {.x = args.x,
                                .weight = args.up,
                                .activation = apart ? Activation::kNone : args.activation,
                                .residual = {},
                                .norm = {},
                                .out = apart ? args.sums : args.out,
                                .row_count = args.row_count,
                                .workspace = args.workspace}),
                  stream_.caps.sm_count);
  up.gated = fused;
  gemm(up);
  if (apart)
    do_activate({.x = args.sums,
                 .activation = args.activation,
                 .gated = true,
                 .out = args.out,
                 .row_count = args.row_count});
}

void CudaOps::do_feed_forward(const FeedForwardArgs& args) {
  const char* op = "feed_forward";
  const DeviceGuard guard(device_);
  const DType dtype = args.x.dtype;
  const int64_t rows = args.x.rows();
  if (args.workspace == nullptr) throw InvalidArgument("feed_forward: workspace is missing");
  if (dtype == DType::kFloat8) return feed_forward_float8(args);
  if (args.up.dtype == DType::kInt8) return feed_forward_int8(args);
  const bool fused = args.gated && gemm_kernels_ == GemmKernels::kSm90;
  TensorView intermediate(args.workspace, dtype, rows, args.up.out_features / (fused ? 2 : 1));
  // Workspace for both reordered inputs: the first product has read its own when the second gets
  // its.
  void* ordered = static_cast<unsigned char*>(args.workspace) + inner_bytes(args);
  const TensorView x = in_order(op, args.x, args.up, ordered, args.row_count);
  GemmParams up = gemm_params(
      op, up_of(args, x, intermediate, args.gated && !fused ? Activation::kNone : args.activation),
      stream_.caps.sm_count);
  up.gated = fused;
  gemm(up);
  if (args.gated && !fused) {
    auto* end = static_cast<unsigned char*>(args.workspace) +
                static_cast<size_t>(intermediate.size()) * size_of(dtype);
    const TensorView gated(end, dtype, rows, args.down.in_features);
    do_activate({.x = intermediate,
                 .activation = args.activation,
                 .gated = true,
                 .out = gated,
                 .row_count = args.row_count});
    intermediate = gated;
  }
  intermediate = in_order(op, intermediate, args.down, ordered, args.row_count);
  gemm(gemm_params(op, down_of(args, intermediate), stream_.caps.sm_count));
  if (args.norm) norm_in_place(args.out, args.norm, {}, args.row_count);
}

void CudaOps::feed_forward_float8(const FeedForwardArgs& args) {
  const char* op = "feed_forward";
  const TensorView inner(args.workspace, DType::kFloat8, args.x.rows(), args.down.in_features);
  GemmParams up = gemm_params(op, up_of(args, args.x, inner, args.activation),
                              stream_.caps.sm_count, args.inner_scale);
  up.gated = args.gated;
  gemm(up);
  gemm(gemm_params(op, down_of(args, inner), stream_.caps.sm_count));
  if (args.norm) norm_in_place(args.out, args.norm, args.quantized, args.row_count);
}

void CudaOps::do_sparse_pool(const SparsePoolArgs& args) {
  if (args.weight.groups) {
    throw InvalidArgument("sparse_pool: the weight is quantised in groups, expected floats");
  }
  const DeviceGuard guard(device_);
  const size_t bytes = static_cast<size_t>(args.out.size()) * sizeof(float);
  CUDA_CHECK(cudaMemsetAsync(args.out.data, 0, bytes, stream_));
  pools_in_gemm(args.sum) ? pool_in_gemm(args) : pool_chunks(args);
  if (!args.sum) {
    launch_sparse_weights(args.out.as<float>(), args.out.size(), args.twice, stream_);
  }
}

void CudaOps::pool_in_gemm(const SparsePoolArgs& args) {
  if constexpr (kBuiltForSm90) {
    const char* op = "sparse_pool";
    GemmParams params =
        gemm_params(op, {.x = args.x, .weight = args.weight, .residual = {}, .norm = {}, .out = {}},
                    stream_.caps.sm_count);
    params.pool.out = args.out.as<float>();
    params.pool.cu_seqlens = args.batch.cu_seqlens;
    params.pool.num_sequences = to_int32(op, "num_sequences", args.batch.num_sequences);
    params.pool.columns = to_int32(op, "columns", args.out.columns());
    launch_gemm_pooled_sm90(params, stream_);
  }
}

void CudaOps::pool_chunks(const SparsePoolArgs& args) {
  const char* op = "sparse_pool";
  if (args.workspace == nullptr && args.x.rows() > 0) {
    throw InvalidArgument("sparse_pool: workspace is missing");
  }
  SparseChunk chunk;
  chunk.logits = args.workspace;
  chunk.stride = args.weight.out_features;
  chunk.cu_seqlens = args.batch.cu_seqlens;
  chunk.num_sequences = to_int32(op, "num_sequences", args.batch.num_sequences);
  chunk.out = args.out.as<float>();
  chunk.columns = args.out.columns();
  chunk.dtype = args.x.dtype;
  for (; chunk.first_row < args.x.rows(); chunk.first_row += kSparsePoolRows) {
    chunk.rows = std::min(kSparsePoolRows, args.x.rows() - chunk.first_row);
    TensorView x = args.x.first_rows(chunk.rows);
    x.data = args.x.as<char>() +
             static_cast<size_t>(chunk.first_row * args.x.row_stride) * size_of(args.x.dtype);
    const TensorView logits(args.workspace, args.x.dtype, chunk.rows, chunk.stride);
    gemm(gemm_params(op, {.x = x, .weight = args.weight, .residual = {}, .norm = {}, .out = logits},
                     stream_.caps.sm_count));
    if (args.sum) {
      launch_sparse_sum(chunk, args.twice, stream_);
    } else {
      launch_sparse_chunk(chunk, stream_);
    }
  }
}

void CudaOps::gemm(const GemmParams& params) {
  if constexpr (kBuiltForSm90) {
    if (params.float8) return launch_gemm_float8(params, stream_);
    if (params.groups && gemm_kernels_ == GemmKernels::kSm90) {
      return params.rows <= most_w4a16_skinny_rows(params)
                 ? launch_gemm_w4a16_skinny(params, stream_)
                 : launch_gemm_w4a16_many(params, stream_);
    }
    if (gemm_kernels_ == GemmKernels::kSm90) {
      if (is_skinny(params)) return launch_gemm_skinny(params, stream_);
      const auto tile = cluster_tile_of(params, stream_.caps);
      return tile ? launch_gemm_splitk_cluster(params, *tile, stream_)
                  : launch_gemm_sm90(params, stream_);
    }
  }
  params.groups ? launch_gemm_w4a16_portable(params, stream_) : launch_gemm_sm80(params, stream_);
}

TensorView CudaOps::in_order(const char* op, const TensorView& x, const LinearWeight& weight,
                             void* workspace, const int32_t* row_count) {
  if (weight.input_order == nullptr) return x;
  if (workspace == nullptr) throw InvalidArgument(concat(op, ": workspace is missing"));
  check_compute(op, x.dtype);
  const TensorView ordered(workspace, x.dtype, x.rows(), weight.in_features);
  check_vectors(op, "x in the order of the weight", ordered);
  launch_order_columns(x, weight.input_order, ordered, row_count, stream_);
  return ordered;
}

LinearArgs CudaOps::in_order(const char* op, const LinearArgs& args) {
  LinearArgs result = args;
  result.x = in_order(op, args.x, args.weight, args.workspace, args.row_count);
  return result;
}

}  // namespace packhorse::cuda
