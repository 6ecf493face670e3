// Maxima in which a NaN wins.
#pragma once

#include <cuda_runtime.h>

namespace packhorse::cuda {

/// The larger; NaN if either is.
__device__ inline float max_nan(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}

/// *to = max_nan(*to, value), by any number of threads in any order; *to is never negative.
/// Non-negative numbers are ordered as their bits are, and a NaN without sign is above all.
__device__ inline void raise(float* to, float value) {
  if (value <= 0) return;
  const int bits = value == value ? __float_as_int(value) : 0x7fffffff;
  atomicMax(reinterpret_cast<int*>(to), bits);
}

}  // namespace packhorse::cuda
