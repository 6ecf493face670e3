// The general portable attention kernel, for sequences of any length (FlashAttention-2, arXiv
// 2307.08691). A block owns 64 or 128 queries of one head of one sequence and goes through the
// tiles of keys and values. It keeps a running maximum and sum per query, and rescales what was
// summed so far when a tile raises the maximum (online softmax). Tiles of keys and of values have
// two stages each in shared memory, so that cp.async brings the next tile while this one is used.
#pragma once

#include "cuda/attention/portable/scores.cuh"

namespace packhorse::cuda {

/// A block has four warps, each with kGroups groups of 16 queries. With two groups a warp uses
/// twice every key and value that it reads from shared memory, but half of a short sequence's slab
/// is empty. One and two groups give the same bits.
template <int kDim, int kGroups>
struct OnlineTraits {
  static constexpr int kThreads = 128;
  static constexpr int kRows = 64 * kGroups;
  static constexpr int kKeys = kDim <= 128 ? 64 : 32;  // keys per tile
  static constexpr int kSlab = kRows * kPitch<kDim>;
  static constexpr int kTile = kKeys * kPitch<kDim>;
  static constexpr size_t kSharedBytes = (kSlab + 4 * kTile) * 2;
};

template <class T, int kDim, int kGroups>
__global__ void __launch_bounds__(OnlineTraits<kDim, kGroups>::kThreads)
    online_attention_kernel(const __grid_constant__ PortableParams params) {
  using Traits = OnlineTraits<kDim, kGroups>;
  constexpr int kKeys = Traits::kKeys;
  extern __shared__ __align__(16) unsigned char shared[];
  T* const queries = reinterpret_cast<T*>(shared);
  T* const tiles = queries + Traits::kSlab;
  const auto keys_at = [&](int tile) { return tiles + tile % 2 * Traits::kTile; };
  const auto values_at = [&](int tile) { return tiles + (2 + tile % 2) * Traits::kTile; };

  QueryTile slab;
  const bool found = find_slab<Traits::kRows>(params, slab);
  wait_for_previous_kernel();
  let_next_kernel_start();
  if (!found) return;
  const Sequence& sequence = slab.sequence;
  const KeyTiles range(slab, params.window, Traits::kRows, kKeys);
  const int head_dim = params.args.head_dim;
  const int warp_row = static_cast<int>(threadIdx.x) / 32 * (16 * kGroups);
  const int position = sequence.k_length - sequence.q_length + slab.row + warp_row;
  T* const warp_queries = queries + warp_row * kPitch<kDim>;

  // fetch commits one group of copies per tile of keys and per tile of values, and an empty group
  // past the last tile. The keys of a tile, and later its values, have therefore arrived when all
  // but the two latest groups have.
  const auto fetch = [&](bool values, int tile) {
    if (tile < range.end) {
      const int key = tile * kKeys;
      copy_tile_async<kKeys, kDim, Traits::kThreads>(
          values ? values_at(tile) : keys_at(tile),
          values ? params.v<T>(slab, key) : params.k<T>(slab, key),
          values ? params.args.v.row_stride : params.args.k.row_stride, sequence.k_length - key,
          head_dim);
    }
    cute::cp_async_fence();
  };
  copy_tile_async<Traits::kRows, kDim, Traits::kThreads>(
      queries, params.q<T>(slab), params.args.q.row_stride, sequence.q_length - slab.row, head_dim);
  fetch(false, range.begin);
  fetch(true, range.begin);

  float output[kGroups][kDim / 8][4] = {};
  float2 maxima[kGroups];
  float2 sums[kGroups] = {};
#pragma unroll
  for (float2& maximum : maxima) maximum = {-INFINITY, -INFINITY};
  for (int tile = range.begin; tile < range.end; ++tile) {
    const int key = tile * kKeys;
    fetch(false, tile + 1);
    cute::cp_async_wait<2>();
    __syncthreads();
    float scores[kGroups][kKeys / 8][4] = {};
    accumulate_scores<T, kDim, kKeys, kGroups>(scores, warp_queries, keys_at(tile));
    const bool all_visible = sees_all(params, slab, Traits::kRows, key, kKeys);
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      finish_scores(scores[g], params, slab, position + g * 16, key, all_visible);
      update_softmax(scores[g], output[g], maxima[g], sums[g]);
    }

    fetch(true, tile + 1);
    cute::cp_async_wait<2>();
    __syncthreads();
    accumulate_output<T, kDim, kKeys, kGroups>(output, scores, values_at(tile));
  }
  cute::cp_async_wait<0>();
  __syncthreads();  // the output is staged where the queries were
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const float2 factors = {inverse_or_zero(quad_sum(sums[g].x)),
                            inverse_or_zero(quad_sum(sums[g].y))};
    store_output<T, kDim>(params, slab, warp_row + g * 16, output[g], factors,
                          warp_queries + g * 16 * kPitch<kDim>);
  }
}

}  // namespace packhorse::cuda
