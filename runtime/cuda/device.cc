// Queries a device by the CUDA runtime, and decides which kernels it can run.
#include "cuda/device.h"

#include <cuda_runtime_api.h>

#include <cstdlib>

#include "cuda/check.h"
#include "cuda/cuda_backend.h"
#include "packhorse/error.h"

namespace packhorse {
namespace cuda {
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

}  // namespace

bool check_device(int device) {
  const std::string name = concat("device 'cuda:", device, "'");
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
  const int major = attribute(cudaDevAttrComputeCapabilityMajor, device);
  const int minor = attribute(cudaDevAttrComputeCapabilityMinor, device);
  if (major < 8) {
    throw RuntimeError(
        concat(name, " has compute capability ", major, ".", minor, ", 8.0 is needed"));
  }
  return kBuiltForSm90 && major == 9 && minor == 0;
}

int sm_count(int device) { return attribute(cudaDevAttrMultiProcessorCount, device); }

size_t most_shared_bytes(int device) {
  return static_cast<size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
}

GemmKernels choose_gemm_kernels(bool sm90_capable) {
  const char* value = std::getenv("PACKHORSE_GEMM");
  const std::string choice = value == nullptr ? "" : value;
  if (choice.empty()) return sm90_capable ? GemmKernels::kSm90 : GemmKernels::kPortable;
  if (choice == "portable") return GemmKernels::kPortable;
  if (choice == "sm90" && sm90_capable) return GemmKernels::kSm90;
  throw RuntimeError(concat("PACKHORSE_GEMM is '", choice, "', expected 'portable'",
                            sm90_capable ? " or 'sm90'" : " (this device or build has no 'sm90')"));
}

AttentionAlgorithm asked_attention_algorithm(AttentionAlgorithm asked) {
  const char* value = std::getenv("PACKHORSE_ATTENTION");
  if (asked != AttentionAlgorithm::kAuto || value == nullptr || *value == 0) return asked;
  return parse_attention_algorithm(value, "PACKHORSE_ATTENTION");
}

}  // namespace cuda

int cuda_device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

}  // namespace packhorse
