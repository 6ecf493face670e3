// What happens to the heads of queries and keys between projection and attention.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/args.h"

namespace packhorse::cuda {

/// Writes each token's position: all that rotation.cuh needs beside the frequencies. Arguments as
/// checked by Ops. Asynchronous on `stream`, without workspace.
void launch_rotation(const RotationArgs& args, cudaStream_t stream);
/// Likewise; rows of one 16-bit dtype, pairs side by side, head_dim a multiple of 8 up to 256. Norm
/// and rotation are computed in float32 and rounded once.
void launch_rotate_heads(const RotateHeadsArgs& args, cudaStream_t stream);

}  // namespace packhorse::cuda
