// Activations of rows, with the gates of feed-forward blocks whose GEMM does not apply them.
#pragma once

#include "cuda/device/stream.h"
#include "ops/args/rowwise.h"

namespace packhorse::cuda {

/// Computes ActivateArgs for 16-bit dtypes. Columns and strides are multiples of 8 elements, and
/// pointers are aligned to 16 bytes. Asynchronous on `stream`. Throws RuntimeError.
void launch_activate(const ActivateArgs& args, const KernelStream& stream);

}  // namespace packhorse::cuda
