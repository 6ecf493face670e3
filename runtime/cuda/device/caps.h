// Capabilities of a device: whether it can run the kernels of this build, and which of them.
#pragma once

#include <cstddef>
#include <string>

#include "core/format.h"

namespace packhorse::cuda {

// Kernels for compute capability 9.0 are part of this build. A call of one stands behind
// `if constexpr`, as there is nothing to link otherwise; whether the device runs it is said by
// DeviceCaps.
#ifdef PACKHORSE_CUDA_SM90
constexpr bool kBuiltForSm90 = true;
#else
constexpr bool kBuiltForSm90 = false;
#endif

/// Capabilities that kernels of this build may use on one device, read once, when a CudaContext is
/// made, and passed down with its stream (KernelStream). Machine code for 9.0 has the instructions
/// named here; the PTX of 8.0, which other devices compile, has none of them.
struct DeviceCaps {
  int sm = 80;            // compute capability: 90 for 9.0
  bool tma = false;       // tensor maps, and copies of their boxes by one thread
  bool wgmma = false;     // products of warpgroups, and all kernels written for Hopper
  bool clusters = false;  // blocks that start together and read each other's shared memory
  bool pdl = false;       // programmatic dependent launch (launch.cuh)
  int sm_count = 0;
  size_t shared_bytes = 0;  // most shared memory of a block
};

/// Reads the capabilities of a device. Throws RuntimeError where there is no driver, the driver is
/// too old, the device does not exist (the message lists those that do) or is too old.
DeviceCaps device_caps(int device);

/// Returns the number of devices that the driver shows; 0 where there is no driver, or one that is
/// too old.
int device_count();

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

}  // namespace packhorse::cuda
