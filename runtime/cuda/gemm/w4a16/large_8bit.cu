// Products of many rows with weights in groups of 8 bits, compiled by themselves to save time.
#include "cuda/gemm/w4a16/large_launch.h"

namespace packhorse::cuda {

template void launch_gemm_w4a16_many_bits<8>(const GemmParams&, const KernelStream&);

}  // namespace packhorse::cuda
