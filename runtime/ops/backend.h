// The only place that knows which backends this build has.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ops/ops.h"
#include "packhorse/attention_algorithm.h"

namespace packhorse {

struct BackendOptions {
  int threads = 0;  // of the CPU, the caller's own among them; 0: all cores it may use
  bool pin_threads = false;
  AttentionAlgorithm attention = AttentionAlgorithm::kAuto;  // of CUDA devices; the CPU has one
};

/// Throws RuntimeError when the build or the machine has no such device.
PACKHORSE_API std::unique_ptr<Ops> make_ops(Device device, const BackendOptions& options);

/// Names of the devices that `make_ops` would accept here.
std::vector<std::string> list_devices();

}  // namespace packhorse
