#include "core/float_convert.h"

#include <algorithm>
#include <cstring>

#include "core/float8.h"
#include "core/format.h"
#include "packhorse/error.h"

namespace packhorse {
namespace {

// The conversions are template arguments so that the compiler inlines them and vectorises the
// loops.
template <float (*convert)(uint16_t)>
void widen(const void* from, float* to, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, static_cast<const char*>(from) + i * sizeof(bits), sizeof(bits));
    to[i] = convert(bits);
  }
}

template <uint16_t (*convert)(float)>
void narrow(const float* from, void* to, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const uint16_t bits = convert(from[i]);
    std::memcpy(static_cast<char*>(to) + i * sizeof(bits), &bits, sizeof(bits));
  }
}

[[noreturn]] void refuse(DType dtype) {
  throw InvalidArgument(concat(name_of(dtype), " found; expected float32, float16 or bfloat16"));
}

}  // namespace

void to_float32(const void* from, DType dtype, float* to, size_t count) {
  if (count == 0) return;  // null pointers must not be passed to memcpy
  switch (dtype) {
    case DType::kFloat32:
      std::memcpy(to, from, count * sizeof(float));
      return;
    case DType::kFloat16:
      return widen<float16_to_float32>(from, to, count);
    case DType::kBFloat16:
      return widen<bfloat16_to_float32>(from, to, count);
    case DType::kFloat8:
      std::transform(static_cast<const uint8_t*>(from), static_cast<const uint8_t*>(from) + count,
                     to, float8_to_float32);
      return;
    case DType::kInt8:
      std::copy_n(static_cast<const int8_t*>(from), count, to);
      return;
    default:
      refuse(dtype);
  }
}

void from_float32(const float* from, DType dtype, void* to, size_t count) {
  if (count == 0) return;
  switch (dtype) {
    case DType::kFloat32:
      std::memcpy(to, from, count * sizeof(float));
      return;
    case DType::kFloat16:
      return narrow<float32_to_float16>(from, to, count);
    case DType::kBFloat16:
      return narrow<float32_to_bfloat16>(from, to, count);
    default:
      refuse(dtype);
  }
}

}  // namespace packhorse
