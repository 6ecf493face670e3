// Norms whose result is e4m3, for the dense layer that reads it.
#pragma once

#include "cuda/rowwise/norm.h"

namespace packhorse::cuda {

/// The widest rows that a launch takes.
inline constexpr int64_t kNormFloat8Columns = 4096;

/// Does what launch_norm does, and writes the results to `quantized` as well, rounded from float32.
/// Columns and strides are multiples of 16. For devices of compute capability 9.0.
void launch_norm_float8(const NormArgs& args, const KernelStream& stream);

}  // namespace packhorse::cuda
