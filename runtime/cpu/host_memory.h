// Memory of the CPU backend.
#pragma once

#include <cstddef>
#include <memory>

#include "ops/device_context.h"

namespace packhorse::cpu {

/// Aligned to a cache line pair at least; large ones lie on huge pages where the kernel grants
/// them. Throws OutOfMemory naming what was asked and what was free.
std::unique_ptr<DeviceMemory> allocate_host_memory(size_t bytes);

}  // namespace packhorse::cpu
