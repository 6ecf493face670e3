// Tests the messages for machines that have no driver, too old a driver, no device, or too old a
// device: a fake of the CUDA runtime answers in its place.
#include <cuda_runtime_api.h>

#include <cstring>
#include <string>
#include <utility>

#include "cuda/device/caps.h"
#include "packhorse/error.h"
#include "test.h"

using namespace packhorse;

namespace {

struct Machine {
  int driver = 13000;
  int devices = 1;
  int major = 9;
  int minor = 0;
  cudaError_t error = cudaSuccess;  // result of counting devices
};

Machine machine;

}  // namespace

extern "C" {
cudaError_t cudaDriverGetVersion(int* version) {
  *version = machine.driver;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = machine.error == cudaSuccess ? machine.devices : 0;
  return machine.error;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::strcpy(properties->name, "a fake");
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr name, int) {
  switch (name) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = machine.major;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = machine.minor;
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = 132;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = 232448;
      return cudaSuccess;
    default:
      return cudaErrorInvalidValue;
  }
}
}

TEST(machines_without_a_usable_driver) {
  machine = {.driver = 0, .error = cudaErrorInsufficientDriver};
  CHECK_THROWS_AS(RuntimeError, cuda::device_caps(0),
                  "device 'cuda:0': no NVIDIA driver on this machine; install one for CUDA 13.0");
  CHECK(cuda::device_count() == 0);
  machine = {.driver = 12020, .error = cudaErrorInsufficientDriver};
  CHECK_THROWS_AS(RuntimeError, cuda::device_caps(0),
                  "the NVIDIA driver is too old: it runs CUDA 12.2, this build needs 13.0");
  CHECK(cuda::device_count() == 0);
}

TEST(machines_without_a_usable_device) {
  machine = {.error = cudaErrorNoDevice};
  CHECK_THROWS_AS(RuntimeError, cuda::device_caps(0), "the driver shows no device");
  CHECK(cuda::device_count() == 0);
  machine = {.devices = 2};
  CHECK_THROWS_AS(RuntimeError, cuda::device_caps(2),
                  "'cuda:2' does not exist: found cuda:0 (a fake), cuda:1 (a fake)");
  CHECK_THROWS_AS(RuntimeError, cuda::device_caps(-1), "does not exist");
  machine = {.major = 7};
  CHECK_THROWS_AS(RuntimeError, cuda::device_caps(0), "has compute capability 7.0, 8.0 is needed");
  machine = {.error = cudaErrorUnknown};
  CHECK_THROWS_AS(RuntimeError, cuda::device_caps(0), "a name: a reason");
  CHECK(cuda::device_count() == 0);
  machine = {};
  CHECK(cuda::device_count() == 1);
}

TEST(capabilities_are_those_of_the_device) {
  machine = {};
  const cuda::DeviceCaps hopper = cuda::device_caps(0);
  CHECK(hopper.sm == 90);
  CHECK(hopper.sm_count == 132);
  CHECK(hopper.shared_bytes == 232448);
  CHECK(hopper.tma && hopper.wgmma && hopper.clusters && hopper.pdl);
  // Devices with these instructions in another form, and without, run the PTX of 8.0.
  for (const auto& [major, minor] : {std::pair{8, 0}, {8, 9}, {10, 0}, {12, 0}}) {
    machine = {.major = major, .minor = minor};
    const cuda::DeviceCaps caps = cuda::device_caps(0);
    CHECK(caps.sm == 10 * major + minor);
    CHECK(!caps.tma && !caps.wgmma && !caps.clusters && !caps.pdl);
  }
}
