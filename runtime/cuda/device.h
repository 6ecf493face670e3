// Checks that a device can run our kernels, and tells which of them.
#pragma once

#include <cstdint>
#include <string>

#include "core/format.h"
#include "packhorse/attention_algorithm.h"

namespace packhorse::cuda {

// True where this build has the kernels that only Hopper can run.
#ifdef PACKHORSE_CUDA_SM90
constexpr bool kBuiltForSm90 = true;
#else
constexpr bool kBuiltForSm90 = false;
#endif

/// Returns a version as text: "13.0" for 13000, which is how CUDA counts.
inline std::string version_text(int version) {
  return concat(version / 1000, ".", version % 1000 / 10);
}

/// Says what is wrong with a driver for CUDA version `driver` (0: there is none) that is too old
/// for a runtime of CUDA version `runtime`.
inline std::string driver_problem(int driver, int runtime) {
  if (driver == 0) {
    return concat("no NVIDIA driver on this machine; install one for CUDA ", version_text(runtime),
                  " or newer, or use device 'cpu'");
  }
  return concat("the NVIDIA driver is too old: it runs CUDA ", version_text(driver),
                ", this build needs ", version_text(runtime));
}

/// Throws RuntimeError unless `device` exists and can run our kernels. Returns whether it can run
/// the Hopper kernels, too.
bool check_device(int device);

/// Returns the number of streaming multiprocessors of a device.
int sm_count(int device);

/// Returns the bytes of shared memory that a block of a device may have.
size_t most_shared_bytes(int device);

enum class GemmKernels : uint8_t { kSm90, kPortable };

/// Returns what the environment variable PACKHORSE_GEMM asks for, and otherwise the best that the
/// device can run. Throws RuntimeError for an unknown name, or for kernels that the device cannot
/// run.
GemmKernels choose_gemm_kernels(bool sm90_capable);

/// Returns `asked`; where that is kAuto, the algorithm that the environment variable
/// PACKHORSE_ATTENTION names, if it is set.
AttentionAlgorithm asked_attention_algorithm(AttentionAlgorithm asked);

}  // namespace packhorse::cuda
