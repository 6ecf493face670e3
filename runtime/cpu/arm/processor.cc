#include "cpu/isa/processor.h"

#include <asm/hwcap.h>
#include <sys/auxv.h>

#include "cpu/isa/kernels.h"

namespace packhorse::cpu {

CpuFeatures cpu_features() {
  const unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
  const bool dot = (first & HWCAP_ASIMDDP) != 0;
  const bool matmul = (second & HWCAP2_BF16) != 0 && (second & HWCAP2_I8MM) != 0;
  // True for every processor: bfloat16 is converted to float32 in registers where there are no
  // instructions for it.
  return {.isa = dot && matmul ? Isa::kNeonMatmul
                 : dot         ? Isa::kNeonDot
                               : Isa::kNeon,
          .bfloat16 = true};
}

const Kernels& kernels_here() {
  switch (cpu_features().isa) {
    case Isa::kNeonMatmul:
      return kNeonMatmulKernels;
    case Isa::kNeonDot:
      return kNeonDotKernels;
    default:
      return kNeonKernels;
  }
}

}  // namespace packhorse::cpu
