// What happens to the heads of queries and keys between projection and attention.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/args.h"

namespace packhorse::cuda {

/// Arguments as checked by Ops. Asynchronous on `stream`, without workspace.
void launch_rotation(const RotationArgs& args, cudaStream_t stream);
/// Likewise; rows of one 16-bit dtype. Norm and rotation are computed in float32 and rounded once.
void launch_rotate_heads(const RotateHeadsArgs& args, cudaStream_t stream);

}  // namespace packhorse::cuda
