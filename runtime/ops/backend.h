// The only place that knows which backends this build has.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ops/device_context.h"
#include "ops/linear_packer.h"
#include "ops/ops.h"
#include "packhorse/attention_algorithm.h"

namespace packhorse {

struct BackendOptions {
  int threads = 0;  // of the CPU, the caller's own among them; 0: all cores it may use
  bool pin_threads = false;
  AttentionAlgorithm attention = AttentionAlgorithm::kAuto;  // of CUDA devices; the CPU has one
  const char* attention_name = "attention_algorithm";        // what the caller calls that
};

/// One device, as everything above sees it. Only an empty one may be assigned to: parts use others.
struct Backend {
  std::unique_ptr<DeviceContext> device;  // first: the others use it
  std::unique_ptr<LinearPacker> packer;
  std::unique_ptr<Ops> ops;
};

/// Throws RuntimeError when the build or the machine has no such device.
PACKHORSE_API Backend make_backend(Device device, const BackendOptions& options);

/// Names of the devices that `make_backend` would accept here.
std::vector<std::string> list_devices();

}  // namespace packhorse
