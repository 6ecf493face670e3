// Token, position and type embeddings, summed and normalised in one pass over memory.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/args/rowwise.h"

namespace packhorse::cuda {

/// Computes EmbedArgs. Ops has checked the arguments; tables and `out` are of one 16-bit dtype,
/// with a multiple of 8 columns. `sm_count` is the number of SMs of the device: a large batch is
/// shared evenly among them.
void launch_embed(const EmbedArgs& args, int sm_count, cudaStream_t stream);

}  // namespace packhorse::cuda
