// The rows around each token of a packed batch, side by side.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/args.h"

namespace packhorse::cuda {

/// NeighboursArgs of 16-bit dtypes; columns and strides multiples of 8 elements, pointers of 16
/// bytes. Asynchronous on `stream`, may be captured. Throws RuntimeError.
void launch_neighbours(const NeighboursArgs& args, cudaStream_t stream);

}  // namespace packhorse::cuda
