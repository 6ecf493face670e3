// Norms whose result is e4m3, for the dense layer that reads it.
#pragma once

#include "cuda/rowwise/norm.h"

namespace packhorse::cuda {

/// The widest rows that a launch takes, in columns.
inline constexpr int64_t kNormFloat8Columns = 4096;

/// Computes NormArgs with `quantized`: the float32 results are rounded both to `out`, if there is
/// one, and to e4m3. Columns and strides are multiples of 16. For devices of compute capability
/// 9.0. Throws InvalidArgument for wider rows than kNormFloat8Columns.
void launch_norm_float8(const NormArgs& args, const KernelStream& stream);

}  // namespace packhorse::cuda
