// Sums and searches by a warp or a block. The order of a sum is fixed by the number of threads
// alone, so that the result of a row does not depend on its neighbours.
#pragma once

#include <cuda_runtime.h>

#include "core/math.h"

namespace packhorse::cuda {

inline constexpr unsigned kFullWarp = 0xffffffffu;

/// Returns the sum over the warp. Every lane gets the same bits, because both lanes of a pair add
/// the same two numbers.
__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) value += __shfl_xor_sync(kFullWarp, value, mask);
  return value;
}

/// Sums kCount values at once over a group of kThreads threads, which is one warp or the whole
/// block. `scratch` is shared memory of kCount x 32 floats, different for each reduction of a
/// kernel; one warp does not use it.
template <int kThreads, int kCount>
__device__ void group_sum(float (&values)[kCount], float* scratch) {
#pragma unroll
  for (float& value : values) value = warp_sum(value);
  if constexpr (kThreads > 32) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (threadIdx.x % 32 == 0) scratch[i * 32 + threadIdx.x / 32] = values[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      values[i] = 0;
#pragma unroll
      for (int warp = 0; warp < kThreads / 32; ++warp) values[i] += scratch[i * 32 + warp];
    }
  }
}

/// The maximum over a group of kThreads threads, of kRows values at once. `scratch`: kRows x 32
/// floats.
template <int kThreads, int kRows>
__device__ void group_max(float (&values)[kRows], float* scratch) {
#pragma unroll
  for (float& value : values) {
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) {
      value = fmaxf(value, __shfl_xor_sync(kFullWarp, value, mask));
    }
  }
  if constexpr (kThreads > 32) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (threadIdx.x % 32 == 0) scratch[r * 32 + threadIdx.x / 32] = values[r];
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int warp = 0; warp < kThreads / 32; ++warp) {
        values[r] = fmaxf(values[r], scratch[r * 32 + warp]);
      }
    }
  }
}

/// Returns the last i in [0, count) with key(i) <= value, or 0 where there is none. key(i) must not
/// decrease. The 32 lanes of the warp test 32 places at once, so that 1024 keys take two rounds of
/// loads instead of ten.
template <class Key>
__device__ int warp_search(int count, int value, Key key) {
  const int lane = threadIdx.x % 32;
  int begin = 0;
  int size = count;
  while (size > 1) {
    const int step = ceil_div(size, 32);
    const int offset = lane * step;
    const bool below = offset < size && key(begin + offset) <= value;
    const int hits = max(__popc(__ballot_sync(kFullWarp, below)), 1);
    begin += (hits - 1) * step;
    size = min(step, size - (hits - 1) * step);
  }
  return begin;
}

}  // namespace packhorse::cuda
