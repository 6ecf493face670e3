#include "cuda/gemm_sm90_tiles.h"

namespace packhorse::cuda {

void launch_gemm_sm90(const GemmParams& params, const GemmConfig& config, cudaStream_t stream) {
  if (params.rows == 0) return;
  params.dtype == DType::kFloat16 ? launch_gemm_dtype<cutlass::half_t>(params, config, stream)
                                  : launch_gemm_dtype<cutlass::bfloat16_t>(params, config, stream);
}

void launch_gemm_sm90(const GemmParams& params, cudaStream_t stream) {
  launch_gemm_sm90(params, select_gemm(shape_of(params), params.sm_count), stream);
}

}  // namespace packhorse::cuda
