// Small copies between page-locked host memory and the device by a kernel.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace packhorse::cuda {

struct SmallCopy {
  void* to = nullptr;
  const void* from = nullptr;
  size_t bytes = 0;
};

/// Makes two copies, of which each may be empty, by one launch, in the order of the stream's other
/// work: the arrays of a step, and the tokens that the step before has chosen. Places lie at
/// multiples of 16 bytes, and one of each copy may be page-locked host memory, which a kernel reads
/// and writes over the bus. Up to some hundred kilobytes this is done sooner than a copy engine
/// begins, which the stream has to be handed to and back from. Larger copies go to a copy engine.
/// Throws RuntimeError.
void copy_in_stream(const SmallCopy& first, const SmallCopy& second, cudaStream_t stream);

}  // namespace packhorse::cuda
