// Weights of attention themselves, over the keys of pages.
#pragma once

#include "cuda/device/stream.h"
#include "ops/args/attention.h"

namespace packhorse::cuda {

/// Throws RuntimeError.
void launch_attention_weights(const AttentionWeightsArgs& args, const KernelStream& stream);

}  // namespace packhorse::cuda
