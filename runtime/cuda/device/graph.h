// GraphCache as CUDA graphs: a sequence of kernels that is launched as one.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>

#include "ops/device_context.h"

namespace packhorse::cuda {

/// Captures what `work` launches on `stream` and prepares it to be launched again there. Throws
/// what `work` throws, or RuntimeError where something in it cannot be captured.
std::unique_ptr<DeviceGraph> capture_graph(cudaStream_t stream, const std::function<void()>& work);

}  // namespace packhorse::cuda
