// Softmax of the portable attention kernels, in base 2: of one warp's 16 rows, by blocks of 8 keys.
#pragma once

#include <cmath>

#include "cuda/attention/mma_sm80.cuh"

namespace packhorse::cuda {

/// The maxima of this thread's two rows over a tile, the same in all lanes of a quad.
template <int kBlocks>
__device__ float2 row_maxima(const float (&scores)[kBlocks][4]) {
  float2 maxima = {-INFINITY, -INFINITY};
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
    maxima.x = fmaxf(maxima.x, fmaxf(scores[n][0], scores[n][1]));
    maxima.y = fmaxf(maxima.y, fmaxf(scores[n][2], scores[n][3]));
  }
  return {quad_max(maxima.x), quad_max(maxima.y)};
}

/// scores = 2^(scores - maxima); the sums of this thread's own elements of its two rows are added
/// to `sums`. A row that sees no key has maximum -infinity, and zeros come out.
template <int kBlocks>
__device__ void exponentiate(float (&scores)[kBlocks][4], float2 maxima, float2& sums) {
  const float base[2] = {maxima.x == -INFINITY ? 0 : maxima.x,
                         maxima.y == -INFINITY ? 0 : maxima.y};
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) scores[n][e] = fast_exp2(scores[n][e] - base[e / 2]);
    sums.x += scores[n][0] + scores[n][1];
    sums.y += scores[n][2] + scores[n][3];
  }
}

/// One tile of online softmax: probabilities of a tile's scores, in place, and what was summed so
/// far shrunk to the row maxima of now.
template <int kBlocks, int kOutputs>
__device__ void update_softmax(float (&scores)[kBlocks][4], float (&output)[kOutputs][4],
                               float2& maxima, float2& sums) {
  const float2 here = row_maxima(scores);
  const float2 highest = {fmaxf(maxima.x, here.x), fmaxf(maxima.y, here.y)};
  const float2 shrink = {highest.x == -INFINITY ? 1 : fast_exp2(maxima.x - highest.x),
                         highest.y == -INFINITY ? 1 : fast_exp2(maxima.y - highest.y)};
  maxima = highest;
  sums = {sums.x * shrink.x, sums.y * shrink.y};
#pragma unroll
  for (float (&block)[4] : output) {
    block[0] *= shrink.x;
    block[1] *= shrink.x;
    block[2] *= shrink.y;
    block[3] *= shrink.y;
  }
  exponentiate(scores, highest, sums);
}

__device__ inline float inverse_or_zero(float sum) { return sum == 0 ? 0 : 1 / sum; }

}  // namespace packhorse::cuda
