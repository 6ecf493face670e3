#include "cpu/isa/processor.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <dnnl.hpp>

#include "cpu/isa/kernels.h"

namespace packhorse::cpu {
namespace {

// Linux lets a process use the tile registers only after it has asked for them
// (Documentation/arch/x86/xstate).
bool may_use_tiles() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// GCC's and clang's __builtin_cpu_supports do not both know this one. Every processor with AVX2
// that was sold has it.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

}  // namespace

CpuFeatures cpu_features() {
  const auto effective = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  const auto has = [&](dnnl::cpu_isa isa) {
    return (effective & static_cast<unsigned>(isa)) == static_cast<unsigned>(isa);
  };
  CpuFeatures features = {.isa = Isa::kSse41};
  if (has(dnnl::cpu_isa::avx512_core)) {
    features.isa = Isa::kAvx512;
  } else if (has(dnnl::cpu_isa::avx2) && __builtin_cpu_supports("fma") && has_f16c()) {
    features.isa = Isa::kAvx2;
  }
  features.bfloat16 = has(dnnl::cpu_isa::avx512_core_bf16);
  features.amx = has(dnnl::cpu_isa::avx512_core_amx) && may_use_tiles();
  features.vnni = has(dnnl::cpu_isa::avx512_core_vnni) || has(dnnl::cpu_isa::avx2_vnni);
  return features;
}

static const Kernels& amx_kernels() {
  static const Kernels kernels = [] {
    Kernels changed = kAvx512Bf16Kernels;
    use_amx(changed);
    return changed;
  }();
  return kernels;
}

const Kernels& kernels_here() {
  const CpuFeatures features = cpu_features();
  switch (features.isa) {
    case Isa::kAvx512:
      if (features.amx) return amx_kernels();
      return features.bfloat16 ? kAvx512Bf16Kernels : kAvx512Kernels;
    case Isa::kAvx2:
      return kAvx2Kernels;
    default:
      return kSse41Kernels;
  }
}

}  // namespace packhorse::cpu
