// Completes the inputs of a step of generation on CUDA (BeginStepArgs). Arguments are checked by
// Ops.
#pragma once

#include "cuda/device/stream.h"
#include "ops/args/sampling.h"

namespace packhorse::cuda {

/// Asynchronous on `stream`, may be captured.
void launch_begin_step(const BeginStepArgs& args, const KernelStream& stream);

}  // namespace packhorse::cuda
