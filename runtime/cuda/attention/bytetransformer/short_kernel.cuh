// Portable attention for short sequences (ByteTransformer, arXiv 2210.03052, section III-D.1). A
// block owns 64 queries of one head of one sequence and keeps their whole rows of scores on chip,
// so that the softmax is computed once and nothing is rescaled. The paper keeps the scores in
// shared memory and registers, this kernel in registers alone: it computes the scores of all key
// tiles, exponentiates them, and multiplies them by the tiles of values.
#pragma once

#include "cuda/attention/limits.h"
#include "cuda/attention/portable/scores.cuh"

namespace packhorse::cuda {

/// A block has eight warps: four groups of 16 queries, and in each group one warp for the left and
/// one for the right half of every key tile. A thread holds 32 scores per key tile. kTiles is the
/// number of key tiles that the longest sequence of the launch may need.
template <int kDim, int kTiles>
struct ShortTraits {
  static constexpr int kThreads = 256;
  static constexpr int kRows = 64;
  static constexpr int kKeys = 128;
  static constexpr int kHalf = kKeys / 2;
  static constexpr int kSlab = kRows * kPitch<kDim>;
  static constexpr int kTile = kKeys * kPitch<kDim>;
  static constexpr size_t kSharedBytes = (kSlab + 2 * kTile) * 2;
  static_assert(2 * kTile * 2 >= kRows * kDim * 4, "room for half of the output");
};

template <class T, int kDim, int kTiles>
__global__ void __launch_bounds__(ShortTraits<kDim, kTiles>::kThreads)
    short_attention_kernel(const __grid_constant__ PortableParams params) {
  using Traits = ShortTraits<kDim, kTiles>;
  constexpr int kKeys = Traits::kKeys;
  constexpr int kHalf = Traits::kHalf;
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ float2 exchange[2][Traits::kRows / 2];
  T* const queries = reinterpret_cast<T*>(shared);
  T* const stages = queries + Traits::kSlab;

  QueryTile slab;
  const bool found = find_slab<Traits::kRows>(params, slab);
  wait_for_previous_kernel();
  let_next_kernel_start();
  if (!found) return;
  const Sequence& sequence = slab.sequence;
  const KeyTiles range(slab, params.window, Traits::kRows, kKeys);
  const int tiles = range.count();
  const int head_dim = params.args.head_dim;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warp_row = warp % 4 * 16;
  // 0: this warp works on the left half of every key tile, 1: on the right.
  const int side = warp / 4;
  const int position = sequence.k_length - sequence.q_length + slab.row + warp_row;

  // Items 0 to tiles - 1 are the tiles of keys, items tiles to 2 tiles - 1 those of values. Two
  // stages hold them in turn: while one item is used, the next is being copied.
  const auto stage_at = [&](int item) { return stages + item % 2 * Traits::kTile; };
  const auto fetch = [&](int item) {
    if (item < 2 * tiles) {
      const bool values = item >= tiles;
      const int key = (range.begin + (values ? item - tiles : item)) * kKeys;
      copy_tile_async<kKeys, kDim, Traits::kThreads>(
          stage_at(item), values ? params.v<T>(slab, key) : params.k<T>(slab, key),
          values ? params.args.v.row_stride : params.args.k.row_stride, sequence.k_length - key,
          head_dim);
    }
    cute::cp_async_fence();
  };
  const auto wait_for_next = [] {
    cute::cp_async_wait<1>();
    __syncthreads();
  };
  const auto replace = [&](int item) {
    __syncthreads();
    fetch(item + 2);
  };
  copy_tile_async<Traits::kRows, kDim, Traits::kThreads>(
      queries, params.q<T>(slab), params.args.q.row_stride, sequence.q_length - slab.row, head_dim);
  fetch(0);
  fetch(1);

  float scores[kTiles][1][kHalf / 8][4] = {};
  float2 maxima = {-INFINITY, -INFINITY};
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    if (t >= tiles) break;
    wait_for_next();
    const int key = (range.begin + t) * kKeys + side * kHalf;
    accumulate_scores<T, kDim, kHalf, 1>(scores[t], queries + warp_row * kPitch<kDim>,
                                         stage_at(t) + side * kHalf * kPitch<kDim>);
    replace(t);
    finish_scores(scores[t][0], params, slab, position, key,
                  sees_all(params, slab, Traits::kRows, key, kHalf));
    const float2 here = row_maxima(scores[t][0]);
    maxima = {fmaxf(maxima.x, here.x), fmaxf(maxima.y, here.y)};
  }

  // The two warps of a row exchange their maxima, since each saw half of the keys.
  const AccumulatorPlace place;
  const int mine = warp_row / 2 + place.row;
  if (place.column == 0) exchange[side][mine] = maxima;
  __syncthreads();
  const float2 other = exchange[1 - side][mine];
  maxima = {fmaxf(maxima.x, other.x), fmaxf(maxima.y, other.y)};

  float2 sums = {0, 0};
  float output[1][kDim / 8][4] = {};
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    if (t >= tiles) break;
    exponentiate(scores[t][0], maxima, sums);
    wait_for_next();
    accumulate_output<T, kDim, kHalf, 1>(output, scores[t],
                                         stage_at(tiles + t) + side * kHalf * kPitch<kDim>);
    replace(tiles + t);
  }
  sums = {quad_sum(sums.x), quad_sum(sums.y)};

  // The warps of the right half pass their part of the output to those of the left half through the
  // stages, which are idle now.
  cute::cp_async_wait<0>();
  __syncthreads();
  auto* parts =
      reinterpret_cast<float4*>(stages) + warp_row / 16 * (kDim / 8) * 32 + threadIdx.x % 32;
  if (side == 1) {
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      const float (&block)[4] = output[0][n];
      parts[n * 32] = make_float4(block[0], block[1], block[2], block[3]);
    }
    if (place.column == 0) exchange[1][mine] = sums;
  }
  __syncthreads();
  if (side == 1) return;
#pragma unroll
  for (int n = 0; n < kDim / 8; ++n) {
    const float4 part = parts[n * 32];
    output[0][n][0] += part.x;
    output[0][n][1] += part.y;
    output[0][n][2] += part.z;
    output[0][n][3] += part.w;
  }
  const float2 rest = exchange[1][mine];
  const float2 factors = {inverse_or_zero(sums.x + rest.x), inverse_or_zero(sums.y + rest.y)};
  store_output<T, kDim>(params, slab, warp_row, output[0], factors,
                        queries + warp_row * kPitch<kDim>);
}

}  // namespace packhorse::cuda
