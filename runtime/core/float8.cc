#include "core/float8.h"

#include <algorithm>
#include <cmath>

namespace packhorse {

void quantize_float8(const float* from, int64_t rows, int64_t columns, uint8_t* to, float* scales) {
  for (int64_t row = 0; row < rows; ++row, from += columns, to += columns) {
    float most = kFloat8Least;
    for (int64_t i = 0; i < columns; ++i) most = std::max(most, std::abs(from[i]));
    scales[row] = most * (1 / kFloat8Most);
    const float factor = kFloat8Most / most;
    for (int64_t i = 0; i < columns; ++i) to[i] = float32_to_float8(from[i] * factor);
  }
}

}  // namespace packhorse
