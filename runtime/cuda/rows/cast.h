// Conversion between dtypes.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/args.h"

namespace packhorse::cuda {

/// Any of float32, float16, bfloat16 to any, of any number of columns and alignment. `x` may lie in
/// pinned host memory.
void launch_cast(const CastArgs& args, cudaStream_t stream);

}  // namespace packhorse::cuda
