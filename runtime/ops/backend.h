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
  int threads = 0;  // CPU threads, including the caller's; 0: all available cores
  bool pin_threads = false;
  AttentionAlgorithm attention = AttentionAlgorithm::kAuto;  // kAuto on the CPU
  const char* attention_name = "attention_algorithm";        // what the caller calls it
  bool urgent = false;  // short work: on CUDA it goes ahead of what else the device has to do
};

/// One device, as the model and the session see it. Assign only to an empty Backend: members depend
/// on each other, and assignment would destroy the old ones in the wrong order.
struct Backend {
  std::unique_ptr<DeviceContext> device;  // declared first because the others use it
  std::unique_ptr<LinearPacker> packer;
  std::unique_ptr<Ops> ops;
};

/// Throws RuntimeError if this build or this machine does not have the device.
PACKHORSE_API Backend make_backend(Device device, const BackendOptions& options);

/// Names of the devices that `make_backend` would accept here.
std::vector<std::string> list_devices();

}  // namespace packhorse
