// Conversions between 16-bit floats and float32. Those to float32 are exact; those to 16 bits round
// to nearest, ties to even. float8.h has those of 8 bits.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "packhorse/types.h"

namespace packhorse {

/// Converts IEEE 754 binary16. Subnormals are computed from an integer, so that the result does not
/// depend on the processor's flush-to-zero mode. NaNs keep their payload.
inline float float16_to_float32(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16;
  const uint32_t exponent = (half >> 10) & 0x1fu;
  const uint32_t fraction = half & 0x3ffu;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  const uint32_t wide = exponent == 0x1f ? 0xffu : exponent + (127 - 15);
  return std::bit_cast<float>(sign | wide << 23 | fraction << 13);
}

/// Converts bfloat16, whose bits are the upper half of a float32.
inline float bfloat16_to_float32(uint16_t half) {
  return std::bit_cast<float>(uint32_t{half} << 16);
}

/// Values of magnitude 65520 or more become infinite; NaNs stay NaNs.
inline uint16_t float32_to_float16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half = 0;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | (magnitude >> 13 & 0x3ffu);
  } else if (magnitude >= std::bit_cast<uint32_t>(65536.0f)) {
    half = 0x7c00u;
  } else if (magnitude < std::bit_cast<uint32_t>(0x1p-14f)) {
    // One unit in the last place of 0.5 is 2^-24, the smallest subnormal: the addition rounds.
    half = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) -
           std::bit_cast<uint32_t>(0.5f);
  } else {
    const uint32_t rebiased = magnitude - (uint32_t{127 - 15} << 23);
    half = (rebiased + 0xfffu + (rebiased >> 13 & 1u)) >> 13;
  }
  return static_cast<uint16_t>(sign | half);
}

inline uint16_t float32_to_bfloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  const uint32_t rounded = bits + 0x7fffu + (bits >> 16 & 1u);
  return static_cast<uint16_t>((is_nan ? bits | 0x400000u : rounded) >> 16);
}

/// Converts `count` values of a floating-point dtype, which may be unaligned, to float32. Throws
/// InvalidArgument for other dtypes.
void to_float32(const void* from, DType dtype, float* to, size_t count);

/// Converts `count` values from float32 to a floating-point dtype of at least 16 bits. `to` may be
/// unaligned. Throws InvalidArgument for other dtypes.
void from_float32(const float* from, DType dtype, void* to, size_t count);

}  // namespace packhorse
