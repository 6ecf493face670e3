// Symmetric int8: how a row of weights becomes integers with one scale, on every backend.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace packhorse {

/// Quantises one row: scale = max |w| / 127, q = w / scale rounded to nearest, ties to even.
/// Returns the scale; a row of zeros has the scale 0.
inline float quantize_int8(const float* __restrict row, int64_t size, int8_t* __restrict to) {
  // Numbers without their sign are ordered as their bits are, and a maximum of integers is one that
  // compilers vectorise.
  int32_t most = 0;
  for (int64_t i = 0; i < size; ++i) {
    most = std::max(most, std::bit_cast<int32_t>(row[i]) & 0x7fffffff);
  }
  const float scale = std::bit_cast<float>(most) / 127.0f;
  if (!(scale > 0)) {
    std::fill_n(to, size, int8_t{0});
    return scale;
  }
  // One unit in the last place of this number is 1, so that adding it rounds; std::nearbyint would
  // be called for each value.
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23
  for (int64_t i = 0; i < size; ++i) {
    const auto q = static_cast<int32_t>(row[i] / scale + kRound - kRound);
    to[i] = static_cast<int8_t>(std::clamp(q, -127, 127));  // a scale may be a coarse subnormal
  }
  return scale;
}

}  // namespace packhorse
