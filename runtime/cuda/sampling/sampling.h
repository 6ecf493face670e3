// Choosing tokens on CUDA. Arguments are checked by Ops.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/args/sampling.h"

namespace packhorse::cuda {

/// Asynchronous on `stream`, may be captured; workspace: a float for each bias.
void launch_sample(const SampleArgs& args, int sm_count, cudaStream_t stream);
void launch_count_tokens(const CountTokensArgs& args, cudaStream_t stream);

}  // namespace packhorse::cuda
