// Conversions of e4m3 on the device, by the rules of core/float8.h for the host, and the place
// where TMA expects each 16-byte chunk of a swizzled box.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "core/float8.h"

namespace packhorse::cuda {

/// Rounds two numbers to nearest, ties to even, limited to +-kFloat8Most; the first goes to the
/// lower byte (PTX ISA, cvt.rn.satfinite.e4m3x2.f32). NaNs stay NaNs.
__device__ inline uint16_t pack_float8(float a, float b) {
  uint16_t packed;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(b), "f"(a));
  return packed;
}

/// Converts four bytes to float16, exactly; the first two become the first pair. The bytes of NaN
/// become NaN, or +-480 before compute capability 8.9, which has no instruction for it (PTX ISA,
/// cvt.rn.f16x2.e4m3x2).
__device__ inline uint2 unpack_float8(uint32_t bytes) {
  uint2 pairs;
#if __CUDA_ARCH__ >= 890
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pairs.x) : "h"(static_cast<uint16_t>(bytes)));
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pairs.y) : "h"(static_cast<uint16_t>(bytes >> 16)));
#else
  // Exponent and mantissa of two bytes, each the upper one of 16 bits, are moved to their places,
  // which changes the exponent's bias by 8.
  const auto unpack_pair = [](uint32_t spread) {
    const uint32_t moved = (spread & 0x80008000u) | (spread >> 1 & 0x3f803f80u);
    const __half2 pair =
        __hmul2(*reinterpret_cast<const __half2*>(&moved), __float2half2_rn(256.0f));
    return *reinterpret_cast<const uint32_t*>(&pair);
  };
  pairs = {unpack_pair(__byte_perm(bytes, 0, 0x1404)), unpack_pair(__byte_perm(bytes, 0, 0x3424))};
#endif
  return pairs;
}

/// Returns the 16-byte chunk in which TMA expects chunk `chunk` of row `row` of a box whose rows
/// have `row_bytes` bytes (128, 64 or 32) and are swizzled over that width.
__host__ __device__ constexpr int swizzled_chunk(int row, int chunk, int row_bytes) {
  return chunk ^ (row_bytes == 128 ? row % 8 : row_bytes == 64 ? row / 2 % 4 : row / 4 % 2);
}

}  // namespace packhorse::cuda
