// The softmax of the portable attention kernels, in base 2. A warp has 16 rows of scores, as blocks
// of 8 keys in the layout of mma accumulators: scores[n][0..1] are of a thread's upper row,
// scores[n][2..3] of its lower row, 8 rows below. A float2 (x, y) holds one value for the upper and
// one for the lower row.
#pragma once

#include <cmath>

#include "cuda/common/mma_sm80.cuh"

namespace packhorse::cuda {

inline constexpr float kLog2e = 1.4426950408889634f;

/// Returns the maxima of this thread's two rows over a tile, the same in all lanes of a quad.
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

/// scores = 2^(scores - maxima). The sums of this thread's own elements of its two rows are added
/// to `sums`. Results are zeros for a row that sees no key, whose maximum is -infinity.
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

/// One step of online softmax. Turns a tile's scores into probabilities, in place; updates the
/// rows' maxima and sums; and multiplies the earlier output and sums by 2^(old maximum - new
/// maximum).
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

/// Returns 1 / sum, and 0 for a row that sees no key, whose sum is 0.
__device__ inline float inverse_or_zero(float sum) { return sum == 0 ? 0 : 1 / sum; }

}  // namespace packhorse::cuda
