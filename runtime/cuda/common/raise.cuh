// Maxima in which a NaN wins, in registers and in memory.
#pragma once

#include <cuda_runtime.h>

namespace packhorse::cuda {

/// Returns the larger number, or NaN if either is NaN.
__device__ inline float max_nan(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}

/// *to = max_nan(*to, value), where *to is never negative. Any number of threads may raise it in
/// any order. One atomic maximum of integers is enough: non-negative floats are ordered as their
/// bits are, and the bits of a NaN without sign are the largest.
__device__ inline void raise(float* to, float value) {
  if (value <= 0) return;
  const int bits = value == value ? __float_as_int(value) : 0x7fffffff;
  atomicMax(reinterpret_cast<int*>(to), bits);
}

}  // namespace packhorse::cuda
