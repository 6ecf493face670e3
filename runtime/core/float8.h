// e4m3 (DType::kFloat8): its conversions, and how the rows of a weight are quantised.
#pragma once

#include <bit>
#include <cstdint>

#include "core/float8_limits.h"

namespace packhorse {

/// Converts e4m3 (DType::kFloat8). It has no infinities, and one NaN of each sign.
constexpr float float8_to_float32(uint8_t bits) {
  const uint32_t sign = uint32_t{bits & 0x80u} << 24;
  const uint32_t magnitude = bits & 0x7fu;
  if (magnitude == 0x7fu) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (magnitude < 0x08u) {
    return std::bit_cast<float>(sign |
                                std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-9f));
  }
  return std::bit_cast<float>(sign | (magnitude + ((127u - 7u) << 3)) << 20);
}

/// Numbers beyond the range, and infinities, become +-448, the largest number; NaNs stay NaNs.
constexpr uint8_t float32_to_float8(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 24 & 0x80u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t rounded = 0;
  if (magnitude > 0x7f800000u) {
    rounded = 0x7fu;
  } else if (magnitude >= std::bit_cast<uint32_t>(448.0f)) {
    rounded = 0x7eu;
  } else if (magnitude < std::bit_cast<uint32_t>(0x1p-6f)) {
    // One unit in the last place of 2^14 is 2^-9, the smallest number: the addition rounds.
    rounded = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0x1p14f) -
              std::bit_cast<uint32_t>(0x1p14f);
  } else {
    const uint32_t rebiased = magnitude - (uint32_t{127 - 7} << 23);
    rounded = (rebiased + 0x7ffffu + (rebiased >> 20 & 1u)) >> 20;
  }
  return static_cast<uint8_t>(sign | rounded);
}

/// Quantises the rows of a matrix to e4m3: each has its largest magnitude / 448 as its scale (1 /
/// 448 of 2^-64 where that is smaller), by which its elements are to be multiplied.
void quantize_float8(const float* from, int64_t rows, int64_t columns, uint8_t* to, float* scales);

}  // namespace packhorse
