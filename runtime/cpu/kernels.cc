#include "cpu/kernels.h"

#include "cpu/gemm.h"

namespace packhorse::cpu {

const Kernels& kernels_here() {
  switch (cpu_features().isa) {
    case Isa::kAvx512:
      return kAvx512Kernels;
    case Isa::kAvx2:
      return kAvx2Kernels;
    case Isa::kSse41:
      break;
  }
  return kSse41Kernels;
}

}  // namespace packhorse::cpu
