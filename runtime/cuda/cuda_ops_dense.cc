// The operators with dense layers, and what adapters add to them.
#include <algorithm>
#include <utility>

#include "cuda/check.h"
#include "cuda/cuda_ops.h"
#include "cuda/device.h"
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/skinny/skinny.h"
#include "cuda/gemm/splitk/splitk_cluster.h"
#include "cuda/gemm/w4a16/w4a16.h"
#include "cuda/rowwise/gate.h"
#include "cuda/rowwise/lora.h"
#include "cuda/rowwise/order_columns.h"
#include "cuda/rowwise/sparse_pool.h"
#include "packhorse/error.h"

namespace packhorse::cuda {
namespace {

GemmParams params_of(const char* op, const LinearArgs& args, int sm_count) {
  if (args.x.dtype == DType::kFloat8) {
    return float8_params(op, args.x, args.x_scales, args.weight, args.activation, args.residual,
                         args.out, 0, args.row_count, sm_count);
  }
  return gemm_params(op, args.x, args.weight, args.activation, args.residual, args.out,
                     args.row_count, sm_count);
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
  gemm(params_of("linear", in_order("linear", args), sm_count_));
  if (args.norm) norm_in_place(args.out, args.norm, args.quantized, args.row_count);
}

bool CudaOps::rotates_in_gemm(const LinearArgs& args, const RopeArgs& heads) const {
  return gemm_kernels_ == GemmKernels::kSm90 && args.weight.dtype != DType::kInt8 &&
         !heads.q_norm && !heads.k_norm;
}

void CudaOps::do_qkv_rope(const LinearArgs& args, const RopeArgs& heads) {
  if (!rotates_in_gemm(args, heads)) {
    do_linear(args);
    return do_rope(heads);
  }
  const DeviceGuard guard(device_);
  GemmParams params = params_of("qkv_rope", in_order("qkv_rope", args), sm_count_);
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
  LoraRotation rotation;
  rotation.positions = static_cast<const float*>(heads.rotation.data);
  rotation.stride = heads.rotation.row_stride;
  rotation.frequencies = heads.frequencies;
  rotation.dims = heads.dims;
  rotation.head_dim = heads.head_dim;
  rotation.columns = (heads.num_heads + heads.num_kv_heads) * heads.head_dim;
  add_lora("qkv_rope", lora, rotation);
}

void CudaOps::do_add_lora(const LoraArgs& args) { add_lora("add_lora", args, {}); }

void CudaOps::do_feed_forward_up(const FeedForwardUpArgs& args) {
  const char* op = "feed_forward_up";
  if (args.up.dtype == DType::kInt8) {
    throw InvalidArgument("feed_forward_up: CUDA has no adapters beside int8 weights");
  }
  const DeviceGuard guard(device_);
  const bool fused = args.gated && gemm_kernels_ == GemmKernels::kSm90;
  const bool apart = args.gated && !fused;
  const TensorView x = in_order(op, args.x, args.up, args.workspace, args.row_count);
  GemmParams up = gemm_params(op, x, args.up, apart ? Activation::kNone : args.activation, {},
                              apart ? args.sums : args.out, args.row_count, sm_count_);
  up.gated = fused;
  gemm(up);
  if (apart) gate(args.sums, args.activation, args.out, args.row_count);
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
  GemmParams up =
      gemm_params(op, x, args.up, args.gated && !fused ? Activation::kNone : args.activation, {},
                  intermediate, args.row_count, sm_count_);
  up.gated = fused;
  gemm(up);
  if (args.gated && !fused) {
    auto* end = static_cast<unsigned char*>(args.workspace) +
                static_cast<size_t>(intermediate.size()) * size_of(dtype);
    const TensorView gated(end, dtype, rows, args.down.in_features);
    gate(intermediate, args.activation, gated, args.row_count);
    intermediate = gated;
  }
  intermediate = in_order(op, intermediate, args.down, ordered, args.row_count);
  gemm(gemm_params(op, intermediate, args.down, Activation::kNone, args.residual, args.out,
                   args.row_count, sm_count_));
  if (args.norm) norm_in_place(args.out, args.norm, {}, args.row_count);
}

void CudaOps::feed_forward_float8(const FeedForwardArgs& args) {
  const char* op = "feed_forward";
  const TensorView inner(args.workspace, DType::kFloat8, args.x.rows(), args.down.in_features);
  GemmParams up = float8_params(op, args.x, args.x_scales, args.up, args.activation, {}, inner,
                                args.inner_scale, args.row_count, sm_count_);
  up.gated = args.gated;
  gemm(up);
  gemm(float8_params(op, inner, {nullptr, args.inner_scale}, args.down, Activation::kNone,
                     args.residual, args.out, 0, args.row_count, sm_count_));
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
        gemm_params(op, args.x, args.weight, Activation::kNone, {}, {}, nullptr, sm_count_);
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
    gemm(gemm_params(op, x, args.weight, Activation::kNone, {}, logits, nullptr, sm_count_));
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
      return is_clustered(params) ? launch_gemm_splitk_cluster(params, stream_)
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
  OrderColumnsParams params;
  params.x = x.data;
  params.x_stride = x.row_stride;
  params.order = weight.input_order;
  params.out = workspace;
  params.rows = x.rows();
  params.columns = weight.in_features;
  params.row_count = row_count;
  launch_order_columns(params, stream_);
  return ordered;
}

LinearArgs CudaOps::in_order(const char* op, const LinearArgs& args) {
  LinearArgs result = args;
  result.x = in_order(op, args.x, args.weight, args.workspace, args.row_count);
  return result;
}

void CudaOps::gate(const TensorView& x, Activation activation, const TensorView& out,
                   const int32_t* row_count) {
  GateParams params;
  params.x = x.data;
  params.out = out.data;
  params.rows = x.rows();
  params.columns = out.columns();
  params.row_count = row_count;
  params.dtype = x.dtype;
  params.activation = activation;
  launch_gate(params, stream_);
}

void CudaOps::add_lora(const char* op, const LoraArgs& args, const LoraRotation& rotation) {
  check_compute(op, args.x.dtype);
  for (auto [name, view] :
       {std::pair{"x", &args.x}, {"a", &args.layer.a}, {"b", &args.layer.b}, {"out", &args.out}}) {
    check_vectors(op, name, *view);
  }
  const DeviceGuard guard(device_);
  launch_add_lora(args, rotation, stream_);
}

}  // namespace packhorse::cuda
