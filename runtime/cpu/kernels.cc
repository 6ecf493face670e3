#include "cpu/kernels.h"

#include "cpu/gemm.h"

namespace packhorse::cpu {

const Kernels& kernels_here() {
  const CpuFeatures features = cpu_features();
  switch (features.isa) {
    case Isa::kAvx512:
      if (features.amx) return kAmxKernels;
      return features.bfloat16 ? kAvx512Bf16Kernels : kAvx512Kernels;
    case Isa::kAvx2:
      return kAvx2Kernels;
    case Isa::kSse41:
      break;
  }
  return kSse41Kernels;
}

}  // namespace packhorse::cpu
