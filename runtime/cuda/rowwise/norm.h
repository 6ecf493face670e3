// LayerNorm and RMSNorm over packed rows, after an optional residual is added.
#pragma once

#include "cuda/device/stream.h"
#include "ops/args/rowwise.h"

namespace packhorse::cuda {

/// Computes NormArgs without `quantized`, with statistics in float32. Rows are 16-bit and have any
/// number of columns that is a multiple of 8. Strides are multiples of 8 elements; pointers, those
/// of gamma and beta too, are aligned to 16 bytes.
void launch_norm(const NormArgs& args, const KernelStream& stream);

}  // namespace packhorse::cuda
