// Numbers of products with keys and values in e4m3: scales, and powers of two. Both kernels of
// attention over pages compute with them, so that they give the same bits.
//
// Bytes become float16, whatever the dtype of the activations: it holds every number of e4m3
// exactly, and Hopper converts two by one instruction. Queries and probabilities become float16,
// too. A row of them is multiplied by a power of two first, so that its largest number lies near
// the largest of float16 and the small ones keep their digits; its products are divided by the
// power afterwards. A key's scale multiplies its scores, a value's scale its probabilities, in
// float32.
//
// Operands hold columns in another order than pages: of each 16 columns, a lane's four are
// neighbours, which lie in one register of bytes. Products are summed in the order of operands, so
// both kernels have it.
#pragma once

#include "cuda/attention/paged/tile_softmax.cuh"
#include "cuda/common/float8.cuh"

namespace packhorse::cuda {

/// Starts copying four scales, of which those from `count` on are not read and become zeros.
/// cp.async.cg bypasses the L1 cache: a line fetched for old tokens' scales would hold stale ones
/// for the tokens of this step.
__device__ inline void copy_scales_async(float* to, const float* from, int count) {
  const auto at = static_cast<unsigned>(__cvta_generic_to_shared(to));
  const int bytes = max(0, min(4, count)) * static_cast<int>(sizeof(float));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes)
               : "memory");
}

/// A power of two and its inverse.
struct PowerOfTwo {
  float up, down;
};

/// The power that brings `largest`, which is not negative, to [2^14, 2^15), where it is not below
/// 2^-112.
__device__ inline PowerOfTwo power_for(float largest) {
  const uint32_t exponent = max(__float_as_uint(largest) >> 23, 15u);
  return {__uint_as_float((268 - exponent) << 23), __uint_as_float((exponent - 14) << 23)};
}

/// Converts two numbers to float16.
__device__ inline uint32_t half_pair(float a, float b) {
  const __half2 pair = __floats2half2_rn(a, b);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

/// Multiplies this thread's scores of a tile by `scales`, those of its keys, and by the units of
/// its two queries.
template <class Place, int kBlocks>
__device__ void scale_float8_scores(float (&scores)[kBlocks][4], const float* scales,
                                    float2 units) {
  const int key = Place().column;
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float scale = scales[key + n * Place::kBlockStep + i * Place::kColumnStep];
      scores[n][i] = __fmul_rn(scores[n][i], __fmul_rn(scale, units.x));
      scores[n][2 + i] = __fmul_rn(scores[n][2 + i], __fmul_rn(scale, units.y));
    }
  }
}

/// Multiplies this thread's probabilities of a tile by `scales`, those of its values, and each row
/// by a power of two. Returns the inverse powers, the units of the rows' products.
template <class Place, int kBlocks>
__device__ float2 scale_float8_probabilities(float (&p)[kBlocks][4], const float* scales) {
  const int key = Place().column;
  float largest[2] = {0, 0};
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      p[n][e] =
          __fmul_rn(p[n][e], scales[key + n * Place::kBlockStep + e % 2 * Place::kColumnStep]);
      largest[e / 2] = fmaxf(largest[e / 2], p[n][e]);
    }
  }
  const PowerOfTwo above = power_for(Place::max_over_keys(largest[0]));
  const PowerOfTwo below = power_for(Place::max_over_keys(largest[1]));
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) p[n][e] = __fmul_rn(p[n][e], e < 2 ? above.up : below.up);
  }
  return {above.down, below.down};
}

/// Multiplies the two rows of this thread by `units`.
template <int kBlocks>
__device__ void multiply_rows(float (&rows)[kBlocks][4], float2 units) {
#pragma unroll
  for (float (&block)[4] : rows) {
#pragma unroll
    for (int e = 0; e < 4; ++e) block[e] = __fmul_rn(block[e], e < 2 ? units.x : units.y);
  }
}

}  // namespace packhorse::cuda
