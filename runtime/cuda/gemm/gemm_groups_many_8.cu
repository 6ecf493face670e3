// Products of many rows with weights in groups of 8 bits, compiled by themselves to save time.
#include "cuda/gemm/gemm_groups_many_launch.h"

namespace packhorse::cuda {

template void launch_gemm_groups_many_bits<8>(const GemmParams&, cudaStream_t);

}  // namespace packhorse::cuda
