// Activations of rows, with the gates of feed-forward blocks whose GEMM does not apply them.
#pragma once

#include "cuda/device/stream.h"
#include "ops/args/rowwise.h"

namespace packhorse::cuda {

/// Columns are whole 16-byte accesses. Asynchronous on `stream`; throws RuntimeError.
void launch_activate(const ActivateArgs& args, const KernelStream& stream);

}  // namespace packhorse::cuda
