// Reductions and searches of a warp or a block. Every order of summation is fixed by the number of
// threads alone, so that a row's result does not depend on its neighbours.
#pragma once

#include <cuda_runtime.h>

namespace packhorse::cuda {

inline constexpr unsigned kFullWarp = 0xffffffffu;

/// Sum over the warp; every lane gets the same bits (a butterfly adds the same pairs on both
/// sides).
__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) value += __shfl_xor_sync(kFullWarp, value, mask);
  return value;
}

/// Sums over a group of kThreads threads, one warp or the whole block, of kCount values at once.
/// `scratch` holds kCount x 32 floats, is unused for one warp, and must be another one for each
/// reduction of a kernel.
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

/// The last i in [0, count) with key(i) <= value, or 0; `key` must not decrease. The 32 lanes of
/// the warp test 32 places at once, so 1024 keys take two rounds of loads instead of ten.
template <class Key>
__device__ int warp_search(int count, int value, Key key) {
  const int lane = threadIdx.x % 32;
  int begin = 0;
  int size = count;
  while (size > 1) {
    const int step = (size + 31) / 32;
    const int offset = lane * step;
    const bool below = offset < size && key(begin + offset) <= value;
    const int hits = max(__popc(__ballot_sync(kFullWarp, below)), 1);
    begin += (hits - 1) * step;
    size = min(step, size - (hits - 1) * step);
  }
  return begin;
}

}  // namespace packhorse::cuda
