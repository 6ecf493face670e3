// Whether a device can run our kernels, and which of them.
#pragma once

#include <cstdint>
#include <string>

#include "core/format.h"
#include "packhorse/attention_algorithm.h"

namespace packhorse::cuda {

// Whether the build has the kernels that only Hopper can run.
#ifdef PACKHORSE_CUDA_SM90
constexpr bool kBuiltForSm90 = true;
#else
constexpr bool kBuiltForSm90 = false;
#endif

/// "13.0" of 13000, as CUDA counts versions.
inline std::string version_text(int version) {
  return concat(version / 1000, ".", version % 1000 / 10);
}

/// What is wrong with a driver for CUDA `driver` (0: none), too old for a runtime of CUDA
/// `runtime`.
inline std::string driver_problem(int driver, int runtime) {
  if (driver == 0) {
    return concat("no NVIDIA driver on this machine; install one for CUDA ", version_text(runtime),
                  " or newer, or use device 'cpu'");
  }
  return concat("the NVIDIA driver is too old: it runs CUDA ", version_text(driver),
                ", this build needs ", version_text(runtime));
}

/// Throws RuntimeError unless `device` exists and can run our kernels; says whether it can run the
/// sm_90 ones.
bool check_device(int device);

int sm_count(int device);

enum class GemmKernels : uint8_t { kSm90, kPortable };

/// What the environment variable PACKHORSE_GEMM asks for, else the best that the device can run.
GemmKernels choose_gemm_kernels(bool sm90_capable);

/// `asked`, or where that is kAuto, what the environment variable PACKHORSE_ATTENTION names.
AttentionAlgorithm asked_attention_algorithm(AttentionAlgorithm asked);

}  // namespace packhorse::cuda
