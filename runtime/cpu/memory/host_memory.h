// The memory of the CPU backend.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "ops/device_context.h"

namespace packhorse::cpu {

/// Bytes of a huge page, the unit in which the kernel clears large allocations where it can.
inline constexpr size_t kHugePage = size_t{2} << 20;

/// Allocates memory that is aligned to Arena::kAlignment or more. Large allocations use huge pages
/// if the kernel provides them. Throws OutOfMemory, whose message says how much was asked for and
/// how much was free.
std::unique_ptr<DeviceMemory> allocate_host_memory(size_t bytes);

/// Bytes of memory that new allocations could use without swapping: what the system estimates, at
/// most what the process's cgroups leave, less what this process has allocated here and not written
/// yet. `root`: a folder that stands for "/" when the system and the cgroups are asked, for tests.
size_t free_host_memory(const std::string& root = "");

}  // namespace packhorse::cpu
