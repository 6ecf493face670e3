// Copies of a few kilobytes between page-locked host memory and the device by a kernel.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace packhorse::cuda {

/// Copies `bytes` bytes in the order of the stream's other work: the arrays of a step, and the
/// tokens that it has chosen. Both places lie at multiples of 16 bytes, and one may be page-locked
/// host memory, which a kernel reads and writes over the bus. Up to some tens of kilobytes this is
/// done sooner than a copy engine begins, which the stream has to be handed to and back from.
/// Larger copies go to a copy engine. Throws RuntimeError.
void copy_in_stream(void* to, const void* from, size_t bytes, cudaStream_t stream);

}  // namespace packhorse::cuda
