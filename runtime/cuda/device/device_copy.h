// Many copies within the device's memory by few launches.
#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "ops/device_context.h"

namespace packhorse::cuda {

/// Makes the copies in the order of the stream's other work, and at the same time as each other.
/// The host asks for a thousand of them in the time of one launch; each would take as long if it
/// were asked for alone, which is longer than it takes to move a page. Throws RuntimeError.
void copy_on_device(std::span<const DeviceCopy> copies, cudaStream_t stream);

}  // namespace packhorse::cuda
