// Sizes of rows of bytes in products of integers.
#pragma once

#include <cstdint>

namespace packhorse::cuda {

/// Rows of bytes begin at multiples of so many bytes, which are loaded at once.
inline constexpr int64_t kInt8Multiple = 16;

/// The widest rows that are quantised; an integer sum over them stays below 2^31.
inline constexpr int64_t kMostInt8Columns = 65536;

inline constexpr int64_t padded_int8(int64_t columns) {
  return (columns + kInt8Multiple - 1) / kInt8Multiple * kInt8Multiple;
}

}  // namespace packhorse::cuda
