#include "cuda/gemm_sm90_tiles.h"

namespace packhorse::cuda {

template void launch_gemm_dtype<cutlass::half_t>(const GemmParams&, const GemmConfig&,
                                                 cudaStream_t);

}  // namespace packhorse::cuda
