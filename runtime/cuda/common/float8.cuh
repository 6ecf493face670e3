// Conversions of e4m3 on the device, by the rules of core/float8.h for the host, and the place
// where TMA expects each 16-byte chunk of a swizzled box.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "core/float8.h"

namespace packhorse::cuda {

/// Rounds two numbers to nearest, ties to even, limited to +-kFloat8Most; the first goes to the
/// lower byte (PTX ISA, cvt.rn.satfinite.e4m3x2.f32). NaNs stay NaNs.
__device__ inline uint16_t pack_float8(float a, float b) {
  uint16_t packed;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(b), "f"(a));
  return packed;
}

/// Factor from the numbers of unpack_float8 to the values of their bytes.
template <class T>
inline constexpr float kFloat8Unit = std::is_same_v<T, __half> ? 256.0f : 1.0f;

/// Converts four bytes to T, exactly, divided by kFloat8Unit<T>. The bytes of NaN become +-480, so
/// that uninitialised memory gives finite numbers, too.
template <class T>
__device__ uint2 unpack_float8(uint32_t bytes) {
  // Unpacks two bytes, each the upper one of 16 bits. Exponent and mantissa are moved to their
  // places, which changes the exponent's bias by 8 in float16 and by 120 in bfloat16. Numbers
  // divided by 2^120 would underflow in products, so bfloat16 is multiplied by it.
  const auto unpack_pair = [](uint32_t spread) {
    const uint32_t sign = spread & 0x80008000u;
    if constexpr (std::is_same_v<T, __half>) {
      return sign | (spread >> 1 & 0x3f803f80u);
    } else {
      const uint32_t small = sign | (spread >> 4 & 0x07f007f0u);
      const __nv_bfloat162 pair =
          __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&small), __float2bfloat162_rn(0x1p120f));
      return *reinterpret_cast<const uint32_t*>(&pair);
    }
  };
  return {unpack_pair(__byte_perm(bytes, 0, 0x1404)), unpack_pair(__byte_perm(bytes, 0, 0x3424))};
}

/// Returns the 16-byte chunk in which TMA expects chunk `chunk` of row `row` of a box whose rows
/// have `row_bytes` bytes (128, 64 or 32) and are swizzled over that width.
__host__ __device__ constexpr int swizzled_chunk(int row, int chunk, int row_bytes) {
  return chunk ^ (row_bytes == 128 ? row % 8 : row_bytes == 64 ? row / 2 % 4 : row / 4 % 2);
}

}  // namespace packhorse::cuda
