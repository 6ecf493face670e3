// Rows quantised to bytes, which are operands of int8 GEMMs, and their sizes.
#pragma once

#include <cstdint>

#include "core/math.h"

namespace packhorse::cuda {

/// Alignment of the rows in bytes: those of one 16-byte load.
inline constexpr int64_t kInt8Multiple = 16;

/// The widest rows that are quantised, in columns; an integer sum over them stays below 2^31.
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

}  // namespace packhorse::cuda
