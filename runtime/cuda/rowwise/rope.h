// Norms and rotation of the heads of queries and keys, between projection and attention.
#pragma once

#include "cuda/device/stream.h"
#include "ops/args/attention.h"

namespace packhorse::cuda {

/// Writes each token's position as float32, which is all that rotation.cuh needs beside the
/// frequencies. Ops has checked the arguments. Asynchronous on `stream`, without workspace.
void launch_rotation(const RotationArgs& args, const KernelStream& stream);
/// Applies the norms and the rotation of RopeArgs, in place. Rows are of one 16-bit dtype,
/// the two columns of a pair lie side by side, and head_dim is a multiple of 8 up to 256. Both
/// steps are computed in float32 and rounded once. Ops has checked the arguments. Asynchronous on
/// `stream`, without workspace.
void launch_rope(const RopeArgs& args, const KernelStream& stream);

}  // namespace packhorse::cuda
