#include "model/layers/positions.h"

#include <algorithm>
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

int64_t causal_bucket(int64_t distance, int64_t num_buckets, int64_t max_distance) {
  const int64_t exact = num_buckets / 2;
  if (distance < exact) return distance;
  const auto range =
      static_cast<float>(std::log(static_cast<double>(max_distance) / static_cast<double>(exact)));
  const float ratio = std::log(static_cast<float>(distance) / static_cast<float>(exact)) / range;
  const auto step = static_cast<int64_t>(ratio * static_cast<float>(num_buckets - exact));
  return std::min(exact + step, num_buckets - 1);
}

RelativeSlots relative_slots(int64_t num_buckets, int64_t max_distance) {
  const int64_t span = num_buckets > 0 ? num_buckets : max_distance;
  const int64_t exact = num_buckets / 2;
  // In float32, as the models were trained, because rounding decides at the edges.
  const auto bucket = [&](int64_t distance) {
    if (num_buckets == 0 || distance <= exact) return distance;
    const auto middle = static_cast<float>(exact);
    const float range = std::log(
        static_cast<float>(static_cast<double>(max_distance - 1) / static_cast<double>(exact)));
    const float ratio = std::log(static_cast<float>(distance) / middle) / range;
    return static_cast<int64_t>(std::ceil(ratio * (middle - 1.0f)) + middle);
  };
  RelativeSlots result;
  int64_t limit = 0;
  while (bucket(limit) < span) ++limit;
  result.limit = static_cast<int32_t>(limit);
  for (int64_t distance = -limit; distance <= limit; ++distance) {
    const int64_t one_sided = bucket(distance < 0 ? -distance : distance);
    const int64_t slot = span + (distance < 0 ? -one_sided : one_sided);
    result.slots.push_back(static_cast<int32_t>(std::clamp<int64_t>(slot, 0, 2 * span - 1)));
  }
  return result;
}

}  // namespace packhorse
