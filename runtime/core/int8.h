// Symmetric int8: how a row of weights becomes integers with one scale, on every backend.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace packhorse {

/// Quantises one row: scale = max |w| / 127, q = w / scale rounded to nearest, ties to even.
/// Returns the scale; a row of zeros has the scale 0.
inline float quantize_int8(const float* row, int64_t size, int8_t* to) {
  float most = 0;
  for (int64_t i = 0; i < size; ++i) most = std::max(most, std::abs(row[i]));
  const float scale = most / 127.0f;
  if (!(scale > 0)) {
    std::fill_n(to, size, int8_t{0});
    return scale;
  }
  // One unit in the last place of this number is 1, so that adding it rounds; std::nearbyint would
  // be called for each value.
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23
  for (int64_t i = 0; i < size; ++i) {
    const float q = std::clamp(row[i] / scale, -127.0f, 127.0f);
    to[i] = static_cast<int8_t>(static_cast<int32_t>(q + kRound - kRound));
  }
  return scale;
}

}  // namespace packhorse
