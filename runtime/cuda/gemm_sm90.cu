// The closed list of Hopper GEMM kernels.
#include "cuda/gemm_sm90_kernel.cuh"

namespace packhorse::cuda {
namespace {

template <class Element, bool has_residual>
void launch_tile(const GemmParams& params, const GemmConfig& config, cudaStream_t stream) {
  switch (config.tile) {
#ifndef PACKHORSE_CUDA_REDUCED
    case GemmTile::k64x32:
      return GemmSm90<Element, 64, 32, 128, has_residual>::launch(params, config, stream);
    case GemmTile::k64x128:
      return GemmSm90<Element, 64, 128, 64, has_residual>::launch(params, config, stream);
    case GemmTile::k128x96:
      return GemmSm90<Element, 128, 96, 64, has_residual>::launch(params, config, stream);
    case GemmTile::k128x192:
      if constexpr (!has_residual)
        return GemmSm90<Element, 128, 192, 64, false>::launch(params, config, stream);
      break;
#endif
    case GemmTile::k64x64:
      return GemmSm90<Element, 64, 64, 128, has_residual>::launch(params, config, stream);
    case GemmTile::k128x128:
      return GemmSm90<Element, 128, 128, 64, has_residual>::launch(params, config, stream);
    default:
      break;
  }
  const GemmTileCost& cost = cost_of(config.tile);
  throw RuntimeError(concat("this build has no GEMM kernel with tile ", cost.m, "x", cost.n,
                            has_residual ? " and a residual" : ""));
}

template <class Element>
void launch_dtype(const GemmParams& params, const GemmConfig& config, cudaStream_t stream) {
  params.residual != nullptr ? launch_tile<Element, true>(params, config, stream)
                             : launch_tile<Element, false>(params, config, stream);
}

}  // namespace

void launch_gemm_sm90(const GemmParams& params, const GemmConfig& config, cudaStream_t stream) {
  if (params.rows == 0) return;
  params.dtype == DType::kFloat16 ? launch_dtype<cutlass::half_t>(params, config, stream)
                                  : launch_dtype<cutlass::bfloat16_t>(params, config, stream);
}

void launch_gemm_sm90(const GemmParams& params, cudaStream_t stream) {
  launch_gemm_sm90(
      params,
      select_gemm(params.rows, params.n, params.k, params.residual != nullptr, params.sm_count),
      stream);
}

}  // namespace packhorse::cuda
