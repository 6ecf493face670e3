// Launches of products of few rows, by dtype.
#include "cuda/gemm/skinny/launch.h"

namespace packhorse::cuda {

void launch_gemm_skinny(const GemmParams& params, const KernelStream& stream) {
  if (params.rows == 0) return;
  dispatch_dtype(params.dtype, [&]<class T>() { launch_gemm_skinny_dtype<T>(params, stream); });
}

}  // namespace packhorse::cuda
