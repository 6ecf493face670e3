// Conversion between dtypes on CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/args.h"

namespace packhorse::cuda {

/// Converts any of float32, float16 and bfloat16 to any of them, with any number of columns and any
/// alignment. `x` may lie in page-locked host memory.
void launch_cast(const CastArgs& args, cudaStream_t stream);

}  // namespace packhorse::cuda
