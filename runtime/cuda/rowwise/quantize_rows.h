// Quantisation of activations to bytes: each row is offset + scale * q with q from 0 to 255, as in
// int8 on the CPU.
#pragma once

#include <cstdint>

#include "cuda/common/int8_rows.h"
#include "cuda/device/stream.h"
#include "packhorse/types.h"

namespace packhorse::cuda {

/// Quantises the rows of x before *row_count, or all where it is null. x is float16 or bfloat16,
/// aligned to 16 bytes, with strides and columns, at most kMostInt8Columns, that are multiples of
/// 8. Asynchronous on `stream`; allocates nothing. Throws RuntimeError.
void launch_quantize_rows(const TensorView& x, const RowBytes& out, const int32_t* row_count,
                          const KernelStream& stream);

}  // namespace packhorse::cuda
