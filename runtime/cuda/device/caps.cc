#include "cuda/device/caps.h"

#include <cuda_runtime_api.h>

#include "cuda/device/check.h"
#include "packhorse/error.h"

namespace packhorse::cuda {
namespace {

std::string device_list(int count) {
  std::string list;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties;
    CUDA_CHECK(cudaGetDeviceProperties(&properties, i));
    list += concat(i == 0 ? "" : ", ", "cuda:", i, " (", properties.name, ")");
  }
  return list;
}

int attribute(cudaDeviceAttr name, int device) {
  int value = 0;
  CUDA_CHECK(cudaDeviceGetAttribute(&value, name, device));
  return value;
}

// Throws RuntimeError unless the device can be used. `name` begins the message.
void check_device(const std::string& name, int device) {
  int driver = 0;
  int runtime = 0;
  CUDA_CHECK(cudaDriverGetVersion(&driver));
  CUDA_CHECK(cudaRuntimeGetVersion(&runtime));
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (driver == 0 || error == cudaErrorInsufficientDriver) {
    cudaGetLastError();
    throw RuntimeError(concat(name, ": ", driver_problem(driver, runtime)));
  }
  if (error != cudaErrorNoDevice) CUDA_CHECK(error);
  cudaGetLastError();
  if (device < 0 || device >= count) {
    throw RuntimeError(
        concat(name, " does not exist: ", count == 0 ? "the driver shows no device" : "found ",
               device_list(count)));
  }
}

}  // namespace

DeviceCaps device_caps(int device) {
  const std::string name = concat("device 'cuda:", device, "'");
  check_device(name, device);
  const int major = attribute(cudaDevAttrComputeCapabilityMajor, device);
  const int minor = attribute(cudaDevAttrComputeCapabilityMinor, device);
  if (major < 8) {
    throw RuntimeError(
        concat(name, " has compute capability ", major, ".", minor, ", 8.0 is needed"));
  }
  DeviceCaps caps;
  caps.sm = 10 * major + minor;
  caps.tma = caps.wgmma = caps.clusters = caps.pdl = kBuiltForSm90 && caps.sm == 90;
  caps.sm_count = attribute(cudaDevAttrMultiProcessorCount, device);
  caps.shared_bytes =
      static_cast<size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  return caps;
}

int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

}  // namespace packhorse::cuda
