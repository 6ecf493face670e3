// Inputs and results of rounds of work through page-locked memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>

#include "ops/device_context.h"

namespace packhorse::cuda {

/// Makes a ring of `stream` on `device`. `inputs` and `results` are device memory, at multiples of
/// 16 bytes; `input_bytes` is a multiple of 16. Throws RuntimeError.
std::unique_ptr<HostDeviceRing> make_ring(int device, cudaStream_t stream, void* inputs,
                                          size_t input_bytes, const void* results,
                                          size_t result_bytes);

}  // namespace packhorse::cuda
