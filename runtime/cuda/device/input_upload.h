// Large arrays of runs on their way to the device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>

#include "ops/device_context.h"

namespace packhorse::cuda {

/// See DeviceContext::make_input_upload. `device` must be the current one in this call. Where the
/// stream is asked to read an array that the caller leaves as it is until the next `synchronize`,
/// `caller_is_read` becomes true; it must outlive the result.
std::unique_ptr<InputUpload> make_input_upload(int device, cudaStream_t stream, void* to,
                                               size_t bytes, bool& caller_is_read);

}  // namespace packhorse::cuda
