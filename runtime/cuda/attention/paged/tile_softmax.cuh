// The softmax of a tile of keys, in base 2, as all kernels of attention over pages compute it.
//
// Kernels for many rows have queries as the rows of their products and keys as the columns; those
// for few rows have it the other way round, which takes half as many products and registers for up
// to eight queries. The sum of a row has one order in both: keys that are congruent modulo 8 are
// added in pairs of neighbouring blocks of eight, and then those eight sums.
#pragma once

#include "cuda/attention/portable/softmax.cuh"

namespace packhorse::cuda {

/// Queries as the rows of products and keys as their columns: the layout of AccumulatorPlace.
struct QueriesByRows : AccumulatorPlace {
  /// The maximum over all keys, of those of this lane.
  __device__ static float max_over_keys(float value) { return quad_max(value); }
  /// The sum of a row, whose pairs of neighbouring keys are x[n][0] and x[n][1].
  template <int kBlocks>
  __device__ static float sum_over_keys(const float (&x)[kBlocks][2]) {
    float even = 0, odd = 0;
#pragma unroll
    for (int n = 0; n < kBlocks; n += 2) {
      even += x[n][0] + x[n + 1][0];
      odd += x[n][1] + x[n + 1][1];
    }
    return quad_sum(even + odd);
  }
};

/// Keys as the rows of products, 16 in a block, and eight queries as their columns. A thread has
/// two neighbouring queries, and of each block two keys, eight apart.
struct KeysByRows {
  static constexpr int kRowStep = 1, kColumnStep = 8, kBlockStep = 16;  // queries, keys, keys
  int row = static_cast<int>(threadIdx.x) % 4 * 2;
  int column = static_cast<int>(threadIdx.x) % 32 / 4;

  __device__ static float max_over_keys(float value) {
#pragma unroll
    for (int mask = 4; mask < 32; mask *= 2) {
      value = fmaxf(value, __shfl_xor_sync(kFullWarp, value, mask));
    }
    return value;
  }
  /// The sum of a row, of which x[n][0] and x[n][1] are eight keys apart.
  template <int kBlocks>
  __device__ static float sum_over_keys(const float (&x)[kBlocks][2]) {
    float sum = 0;
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) sum += x[n][0] + x[n][1];
#pragma unroll
    for (int mask = 4; mask < 32; mask *= 2) sum += __shfl_xor_sync(kFullWarp, sum, mask);
    return sum;
  }
};

/// Turns a tile's scores into probabilities, in place. `maxima` and `sums` are those of this
/// thread's two rows over the tile, the same in all lanes that have keys of them.
template <class Place = QueriesByRows, int kBlocks>
__device__ void tile_softmax(float (&scores)[kBlocks][4], float2& maxima, float2& sums) {
  float most[2], sum[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    most[h] = -INFINITY;
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
      most[h] = fmaxf(most[h], fmaxf(scores[n][2 * h], scores[n][2 * h + 1]));
    }
    most[h] = Place::max_over_keys(most[h]);
    const float base = most[h] == -INFINITY ? 0 : most[h];
    float row[kBlocks][2];
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        row[n][i] = scores[n][2 * h + i] = fast_exp2(scores[n][2 * h + i] - base);
      }
    }
    sum[h] = Place::sum_over_keys(row);
  }
  maxima = {most[0], most[1]};
  sums = {sum[0], sum[1]};
}

}  // namespace packhorse::cuda
