#include "core/float_convert.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "packhorse/error.h"
#include "test.h"

namespace packhorse {
namespace {

/// The value of a 16-bit float by its definition, in double. NaNs give NaN.
double value_of(uint32_t bits, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const double fraction = bits & ((1u << fraction_bits) - 1);
  const double sign = bits & 0x8000u ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) return fraction == 0 ? sign * INFINITY : NAN;
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
}

bool same(float found, double expected) {
  if (std::isnan(expected)) return std::isnan(found);
  return found == expected && std::signbit(found) == std::signbit(expected);
}

TEST(every_float16_converts) {
  int wrong = 0;
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    wrong += !same(float16_to_float32(static_cast<uint16_t>(bits)), value_of(bits, 5, 10));
  }
  CHECK(wrong == 0);
}

TEST(every_bfloat16_converts) {
  int wrong = 0;
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    wrong += !same(bfloat16_to_float32(static_cast<uint16_t>(bits)), value_of(bits, 8, 7));
  }
  CHECK(wrong == 0);
}

/// Checks `narrow` at every 16-bit value, at the midpoint to its successor and just beside that.
template <class Widen, class Narrow>
int count_wrong_roundings(uint16_t infinity, Widen widen, Narrow narrow) {
  int wrong = 0;
  for (uint32_t bits = 0; bits < infinity; ++bits) {
    const auto low = static_cast<uint16_t>(bits);
    const auto high = static_cast<uint16_t>(bits + 1);
    const float value = widen(low);
    // The step beyond the largest finite number is as long as the one before it.
    const float next =
        high == infinity ? value + (value - widen(static_cast<uint16_t>(bits - 1))) : widen(high);
    const float middle = value / 2 + next / 2;
    const uint16_t even = low % 2 == 0 ? low : high;
    for (const uint16_t sign : {0x0000, 0x8000}) {
      const float factor = sign == 0 ? 1.0f : -1.0f;
      wrong += narrow(factor * value) != (sign | low);
      wrong += narrow(factor * middle) != (sign | even);
      wrong += narrow(factor * std::nextafter(middle, 0.0f)) != (sign | low);
      wrong += narrow(factor * std::nextafter(middle, INFINITY)) != (sign | high);
    }
  }
  return wrong;
}

TEST(float16_rounds_to_nearest_even) {
  CHECK(count_wrong_roundings(0x7c00, float16_to_float32, float32_to_float16) == 0);
  CHECK(float32_to_float16(1e30f) == 0x7c00);
  CHECK(float32_to_float16(-INFINITY) == 0xfc00);
  CHECK(float32_to_float16(1e-30f) == 0);
  CHECK(std::isnan(float16_to_float32(float32_to_float16(NAN))));
  CHECK(float32_to_float16(std::bit_cast<float>(0x7f800001u)) == 0x7e00);
}

TEST(bfloat16_rounds_to_nearest_even) {
  // The largest number is left out, because its midpoint to the next is not a float32.
  CHECK(count_wrong_roundings(0x7f7f, bfloat16_to_float32, float32_to_bfloat16) == 0);
  CHECK(float32_to_bfloat16(std::numeric_limits<float>::max()) == 0x7f80);
  CHECK(float32_to_bfloat16(-INFINITY) == 0xff80);
  CHECK(std::isnan(bfloat16_to_float32(float32_to_bfloat16(NAN))));
  CHECK(float32_to_bfloat16(std::bit_cast<float>(0x7f800001u)) == 0x7fc0);
}

TEST(nan_payload_and_sign_survive) {
  CHECK(std::bit_cast<uint32_t>(float16_to_float32(0xfe01)) == 0xffc02000u);
  CHECK(std::bit_cast<uint32_t>(bfloat16_to_float32(0x7fc1)) == 0x7fc10000u);
}

TEST(arrays_convert_from_unaligned_data) {
  const char half[] = "\0\x00\x3c\x00\xc0\x01\x00";  // one byte, then 1, -2, 2^-24
  float values[3] = {};
  to_float32(half + 1, DType::kFloat16, values, 3);
  CHECK(values[0] == 1 && values[1] == -2 && values[2] == 0x1p-24f);
  const char brain[] = "\0\x80\x3f\x00\xc0";  // one byte, then 1, -2
  to_float32(brain + 1, DType::kBFloat16, values, 2);
  CHECK(values[0] == 1 && values[1] == -2);
  const char full[] = "\0\x00\x00\xc0\x3f";  // one byte, then 1.5
  to_float32(full + 1, DType::kFloat32, values, 1);
  CHECK(values[0] == 1.5f);
  char back[7] = {};
  from_float32(values, DType::kFloat32, back + 1, 1);
  CHECK(std::memcmp(back, full, 5) == 0);
  const float small[] = {1, -2, 0x1p-24f};
  from_float32(small, DType::kFloat16, back + 1, 3);
  CHECK(std::memcmp(back, half, 7) == 0);
  from_float32(small, DType::kBFloat16, back + 1, 2);
  CHECK(std::memcmp(back, brain, 5) == 0);
  CHECK_THROWS_WITH(from_float32(small, DType::kBool, back, 1), "bool found");
  to_float32(nullptr, DType::kFloat32, nullptr, 0);
  CHECK_THROWS_WITH(to_float32(full, DType::kInt32, values, 1), "int32 found; expected float32");
}

}  // namespace
}  // namespace packhorse
