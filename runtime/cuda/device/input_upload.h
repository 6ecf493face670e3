// Large arrays of runs on their way to the device.
#pragma once

#include <memory>

#include "cuda/device/context.h"

namespace packhorse::cuda {

/// See DeviceContext::make_input_upload. `context` must outlive the result, whose device must be
/// current in this call.
std::unique_ptr<InputUpload> make_input_upload(CudaContext& context, void* to, size_t bytes);

}  // namespace packhorse::cuda
