// Activations as bytes: each row is offset + scale * q with q from 0 to 255, as in int8 on the CPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/math.h"
#include "packhorse/types.h"

namespace packhorse::cuda {

/// Rows of bytes begin at multiples of so many bytes, which are loaded at once.
inline constexpr int64_t kInt8Multiple = 16;

/// The widest rows that are quantised; an integer sum over them stays below 2^31.
inline constexpr int64_t kMostInt8Columns = 65536;

inline constexpr int64_t padded_int8(int64_t columns) { return round_up(columns, kInt8Multiple); }

/// Rows as bytes: offset is the smallest element of the row, scale = (largest - smallest) / 255, q
/// = (x - offset) / scale rounded to nearest, ties to even. A row of equal elements has the scale
/// 0; one with an element that is not finite has NaN as scale and offset.
struct RowBytes {
  uint8_t* values = nullptr;  // [rows, padded_int8(columns)]; the padding is zeros
  float* scales = nullptr;    // [rows]
  float* offsets = nullptr;   // [rows]
};

/// Writes the rows of x before *row_count, or all where that is null. x is float16 or bfloat16,
/// aligned to 16 bytes, with strides and columns, at most kMostInt8Columns, that are multiples
/// of 8. Asynchronous on `stream`; allocates nothing. Throws RuntimeError.
void launch_quantize_rows(const TensorView& x, const RowBytes& out, const int32_t* row_count,
                          cudaStream_t stream);

}  // namespace packhorse::cuda
