// Token, position and type embeddings, summed and normalised in one pass.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/args.h"

namespace packhorse::cuda {

/// Arguments as checked by Ops; tables and `out` of one 16-bit dtype, rows of a multiple of 8
/// columns. `sm_count`: of the device, among whose multiprocessors a large batch is shared evenly.
void launch_embed(const EmbedArgs& args, int sm_count, cudaStream_t stream);

}  // namespace packhorse::cuda
