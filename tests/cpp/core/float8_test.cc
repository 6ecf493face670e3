// e4m3 on the host, and the bounds that give scales of models in float8.
#include "core/float8.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "core/float_convert.h"
#include "model/loading/float8_layers.h"
#include "test.h"

namespace packhorse {
namespace {

// The value of a byte by the definition of e4m3: bias 7, no infinities.
double value_of(uint32_t bits) {
  const int exponent = static_cast<int>(bits >> 3 & 15);
  const double fraction = bits & 7;
  const double sign = bits & 0x80 ? -1.0 : 1.0;
  if (exponent == 15 && fraction == 7) return NAN;
  if (exponent == 0) return sign * std::ldexp(fraction, -9);
  return sign * std::ldexp(8 + fraction, exponent - 10);
}

TEST(every_float8_converts) {
  for (uint32_t bits = 0; bits < 256; ++bits) {
    const float found = float8_to_float32(static_cast<uint8_t>(bits));
    const double expected = value_of(bits);
    if (std::isnan(expected)) {
      CHECK(std::isnan(found));
      CHECK((float32_to_float8(found) & 0x7f) == 0x7f);
      continue;
    }
    CHECK(found == expected && std::signbit(found) == std::signbit(expected));
    CHECK(float32_to_float8(found) == bits);
  }
}

TEST(float8_rounds_to_nearest_even) {
  for (uint32_t low = 0; low < 0x7e; ++low) {
    const uint32_t high = low + 1;
    const auto middle = static_cast<float>((value_of(low) + value_of(high)) / 2);
    const uint32_t even = low % 2 == 0 ? low : high;
    for (const float sign : {1.0f, -1.0f}) {
      const uint32_t bit = sign < 0 ? 0x80 : 0;
      CHECK(float32_to_float8(sign * middle) == (even | bit));
      CHECK(float32_to_float8(sign * std::nextafter(middle, 0.0f)) == (low | bit));
      CHECK(float32_to_float8(sign * std::nextafter(middle, 1e3f)) == (high | bit));
    }
  }
}

TEST(float8_is_limited) {
  for (const float large :
       {448.0f, 463.9f, 464.0f, 1e30f, std::numeric_limits<float>::infinity()}) {
    CHECK(float32_to_float8(large) == 0x7e);
    CHECK(float32_to_float8(-large) == 0xfe);
  }
  CHECK(float32_to_float8(std::numeric_limits<float>::denorm_min()) == 0);
}

TEST(rows_have_scales_of_their_own) {
  const std::vector<float> weight = {1, -2, 0.5f, 0, 0, 0, 1e-30f, 0, 0, 3e38f, 1, 0};
  std::vector<uint8_t> values(weight.size());
  std::vector<float> scales(4);
  quantize_float8(weight.data(), 4, 3, values.data(), scales.data());
  CHECK(scales[0] == 2.0f * (1 / 448.0f));
  CHECK(values[1] == 0xfe);  // -448
  CHECK(values[0] == float32_to_float8(224.0f) && values[2] == float32_to_float8(112.0f));
  CHECK(scales[1] > 0 && values[3] == 0 && values[4] == 0);
  CHECK(values[6] == 0);  // below the least magnitude
  CHECK(values[9] == 0x7e && values[10] == 0);
}

TEST(bounds_hold_and_are_met) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  constexpr int64_t kRows = 20;
  constexpr int64_t kColumns = 48;  // kSize columns, then padding
  constexpr size_t kSize = 43;
  NormedRows normed;
  for (size_t i = 0; i < kSize; ++i) {
    normed.gamma.push_back(1 + 0.3f * normal(random));
    normed.beta.push_back(0.2f * normal(random));
  }
  std::vector<float> weight(kRows * kColumns);
  std::vector<float> bias(kRows);
  for (float& value : weight) value = normal(random);
  for (float& value : bias) value = normal(random);
  const std::vector<float> bounds =
      largest_outputs(weight.data(), kRows, kColumns, bias.data(), normed);
  for (int64_t row = 0; row < kRows; ++row) {
    const float* w = weight.data() + row * kColumns;
    // The z of length sqrt(size) that points where gamma * w does gives the most.
    double square = 0;
    double shift = bias[static_cast<size_t>(row)];
    for (size_t i = 0; i < kSize; ++i) {
      square += std::pow(double{w[i]} * normed.gamma[i], 2);
      shift += double{w[i]} * normed.beta[i];
    }
    const double most = std::sqrt(kSize * square) + std::abs(shift);
    CHECK(std::abs(bounds[static_cast<size_t>(row)] - most) < 1e-4 * most);
    for (int trial = 0; trial < 20; ++trial) {
      std::vector<double> z(kSize);
      double length = 0;
      for (double& value : z) {
        value = normal(random);
        length += value * value;
      }
      double output = shift;
      for (size_t i = 0; i < kSize; ++i) {
        output += w[i] * normed.gamma[i] * z[i] * std::sqrt(kSize / length);
      }
      CHECK(std::abs(output) <= bounds[static_cast<size_t>(row)]);
    }
  }
  CHECK(float8_scale(448) > 1 && float8_scale(448) < 1.2f);
  CHECK(float8_scale(0) > 0);
}

}  // namespace
}  // namespace packhorse
