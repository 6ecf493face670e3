// What a step of generation begins with on CUDA. Arguments are checked by Ops.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/args/sampling.h"

namespace packhorse::cuda {

/// Asynchronous on `stream`, may be captured.
void launch_begin_step(const BeginStepArgs& args, cudaStream_t stream);

}  // namespace packhorse::cuda
