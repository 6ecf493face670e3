// Choosing tokens on CUDA. Arguments are checked by Ops.
#pragma once

#include "cuda/device/stream.h"
#include "ops/args/sampling.h"

namespace packhorse::cuda {

/// Asynchronous on `stream`, may be captured; workspace: a float for each bias.
void launch_sample(const SampleArgs& args, const KernelStream& stream);
void launch_count_tokens(const CountTokensArgs& args, const KernelStream& stream);

}  // namespace packhorse::cuda
