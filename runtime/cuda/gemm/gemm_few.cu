// Products of few rows: the closed list of kernels.
#include "cuda/gemm/gemm_few_launch.h"

namespace packhorse::cuda {

void launch_gemm_few(const GemmParams& params, cudaStream_t stream) {
  if (params.rows == 0) return;
  dispatch_dtype(params.dtype, [&]<class T>() { launch_gemm_few_dtype<T>(params, stream); });
}

}  // namespace packhorse::cuda
