#include "model/positions.h"

#include <bit>
#include <cmath>

namespace packhorse {

std::vector<float> rope_frequencies(float theta, int64_t dims, float factor) {
  std::vector<float> result;
  for (int64_t j = 0; j < dims; j += 2) {
    const float exponent = static_cast<float>(j) / static_cast<float>(dims);
    const auto power = static_cast<float>(std::pow(double{theta}, double{exponent}));
    result.push_back(1.0f / power / factor);
  }
  return result;
}

std::vector<float> alibi_slopes(int64_t num_heads) {
  const auto below = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(num_heads)));
  std::vector<float> result;
  const auto add = [&](int64_t step, int64_t count) {
    result.push_back(static_cast<float>(
        std::exp2(-8.0 * static_cast<double>(step) / static_cast<double>(count))));
  };
  for (int64_t h = 0; h < below; ++h) add(h + 1, below);
  for (int64_t h = below; h < num_heads; ++h) add(2 * (h - below) + 1, 2 * below);
  return result;
}

}  // namespace packhorse
