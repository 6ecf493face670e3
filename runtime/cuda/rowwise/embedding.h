// Token, position and type embeddings, summed and normalised in one pass over memory.
#pragma once

#include "cuda/device/stream.h"
#include "ops/args/rowwise.h"

namespace packhorse::cuda {

/// Computes EmbedArgs. Ops has checked the arguments; tables and `out` are of one 16-bit dtype,
/// with a multiple of 8 columns. A large batch is divided evenly among the device's SMs.
void launch_embed(const EmbedArgs& args, const KernelStream& stream);

}  // namespace packhorse::cuda
