// e4m3 on the device: how numbers are rounded, how the scale of a row is made, and where TMA
// expects 16-byte chunks of a swizzled box. core/float8.h has the same rules for the host.
#pragma once

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

/// Returns the 16-byte chunk in which TMA expects chunk `chunk` of row `row` of a box whose rows
/// have `row_bytes` bytes (128, 64 or 32) and are swizzled over that width.
__host__ __device__ constexpr int swizzled_chunk(int row, int chunk, int row_bytes) {
  return chunk ^ (row_bytes == 128 ? row % 8 : row_bytes == 64 ? row / 2 % 4 : row / 4 % 2);
}

}  // namespace packhorse::cuda
