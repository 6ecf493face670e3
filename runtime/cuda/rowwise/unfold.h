// The rows around each token of a packed batch, side by side, as the input of a convolution.
#pragma once

#include "cuda/device/stream.h"
#include "ops/args/rowwise.h"

namespace packhorse::cuda {

/// Computes UnfoldArgs for 16-bit dtypes. Columns and strides are multiples of 8 elements, and
/// pointers are aligned to 16 bytes. Asynchronous on `stream`, may be captured into a graph. Throws
/// RuntimeError.
void launch_unfold(const UnfoldArgs& args, const KernelStream& stream);

}  // namespace packhorse::cuda
