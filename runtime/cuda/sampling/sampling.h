// Steps of generation on CUDA: inputs that the host lacks, and the tokens that are chosen.
// Arguments are checked by Ops. All are asynchronous on `stream`, and may be captured.
#pragma once

#include "cuda/device/stream.h"
#include "ops/args/sampling.h"

namespace packhorse::cuda {

void launch_begin_step(const BeginStepArgs& args, const KernelStream& stream);
/// The workspace holds a float for each bias.
void launch_sample(const SampleArgs& args, const KernelStream& stream);
void launch_count_tokens(const CountTokensArgs& args, const KernelStream& stream);

}  // namespace packhorse::cuda
