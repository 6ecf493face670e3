// Products of many rows with weights in groups: the choice of a kernel, and those of 4 bits.
#include "cuda/gemm/w4a16/large_launch.h"

namespace packhorse::cuda {

// Instantiated in large_8bit.cu, to compile side by side.
extern template void launch_gemm_w4a16_many_bits<8>(const GemmParams&, const KernelStream&);

void launch_gemm_w4a16_many(const GemmParams& params, const KernelStream& stream) {
  if (params.rows == 0) return;
  params.groups.bits == 4 ? launch_gemm_w4a16_many_bits<4>(params, stream)
                          : launch_gemm_w4a16_many_bits<8>(params, stream);
}

}  // namespace packhorse::cuda
