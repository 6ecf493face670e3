#include "ops/backend.h"

#include "core/format.h"
#include "packhorse/cpu_profile.h"
#include "packhorse/error.h"
#ifdef PACKHORSE_WITH_CPU
#include "cpu/common/profile.h"
#include "cpu/cpu_backend.h"
#endif
#ifdef PACKHORSE_WITH_CUDA
#include "cuda/cuda_backend.h"
#endif

namespace packhorse {

Backend make_backend(Device device, [[maybe_unused]] const BackendOptions& options) {
  switch (device.type) {
    case DeviceType::kCpu:
#ifdef PACKHORSE_WITH_CPU
      if (options.attention != AttentionAlgorithm::kAuto) {
        throw InvalidArgument(concat(options.attention_name, " is '", name_of(options.attention),
                                     "': the CPU has one algorithm alone, expected 'auto'"));
      }
      return make_cpu_backend(options);
#else
      throw RuntimeError(
          "this build of Packhorse has no CPU backend (built with PACKHORSE_CPU=OFF)");
#endif
    case DeviceType::kCuda:
#ifdef PACKHORSE_WITH_CUDA
      return make_cuda_backend(device.index, options.attention, options.urgent);
#else
      throw RuntimeError(
          concat("device '", name_of(device),
                 "': this build of Packhorse has no CUDA backend (build with PACKHORSE_CUDA=ON)"));
#endif
  }
  throw InvalidArgument("unknown device type");
}

std::vector<std::string> list_devices() {
  std::vector<std::string> devices;
#ifdef PACKHORSE_WITH_CPU
  devices.push_back("cpu");
#endif
#ifdef PACKHORSE_WITH_CUDA
  for (int i = 0; i < cuda_device_count(); ++i) {
    devices.push_back(name_of(Device{DeviceType::kCuda, i}));
  }
#endif
  return devices;
}

// Starts measuring CPU operators. A build without the CPU backend has nothing to measure.
void start_cpu_profile() {
#ifdef PACKHORSE_WITH_CPU
  cpu::start_profile();
#endif
}

std::vector<std::pair<std::string, double>> stop_cpu_profile() {
#ifdef PACKHORSE_WITH_CPU
  return cpu::stop_profile();
#else
  return {};
#endif
}

}  // namespace packhorse
