// The choice of a Hopper GEMM kernel: dtype and epilogue here, the tile in gemm_sm90_tiles.h.
#include <cutlass/numeric_types.h>

#include "cuda/gemm/gemm_sm90_traits.cuh"

namespace packhorse::cuda {

template <class Element, GemmEpilogue epilogue>  // defined in gemm_sm90_tiles.h
void launch_gemm_tile(const GemmParams& p, const GemmConfig& config, cudaStream_t stream);

namespace {

template <class Element>
void launch_dtype(const GemmParams& p, const GemmConfig& config, cudaStream_t stream) {
  if (p.gated) return launch_gemm_tile<Element, GemmEpilogue::kGated>(p, config, stream);
  if (p.rotation.positions != nullptr) {
    return launch_gemm_tile<Element, GemmEpilogue::kRotated>(p, config, stream);
  }
  p.residual != nullptr ? launch_gemm_tile<Element, GemmEpilogue::kResidual>(p, config, stream)
                        : launch_gemm_tile<Element, GemmEpilogue::kPlain>(p, config, stream);
}

}  // namespace

void launch_gemm_sm90(const GemmParams& params, const GemmConfig& config, cudaStream_t stream) {
  if (params.rows == 0) return;
  params.dtype == DType::kFloat16 ? launch_dtype<cutlass::half_t>(params, config, stream)
                                  : launch_dtype<cutlass::bfloat16_t>(params, config, stream);
}

void launch_gemm_sm90(const GemmParams& params, cudaStream_t stream) {
  launch_gemm_sm90(params, select_gemm(shape_of(params), params.sm_count), stream);
}

}  // namespace packhorse::cuda
