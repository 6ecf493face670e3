// Features of this machine's processor. x86/processor.cc and arm/processor.cc find it out; the
// build takes one of the two folders.
#pragma once

namespace packhorse::cpu {

/// The instruction sets for which vector kernels are compiled, by name of their files.
enum class Isa { kSse41, kAvx2, kAvx512, kNeon, kNeonDot, kNeonMatmul };

struct CpuFeatures {
  Isa isa;
  bool bfloat16 = false;  // dense layers take rows of bfloat16
  bool amx = false;       // AMX-BF16 and AMX-INT8, if the system lets this process use them
  bool vnni = false;      // on x86-64: sums of int8 products in 32 bits, with no 16-bit step
};

/// Returns the features of this processor. On x86-64 they are those that oneDNN sees; the
/// environment variable ONEDNN_MAX_CPU_ISA limits them.
CpuFeatures cpu_features();

}  // namespace packhorse::cpu
