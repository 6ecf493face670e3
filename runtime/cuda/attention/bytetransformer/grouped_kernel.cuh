// ByteTransformer's attention for longer sequences (arXiv 2210.03052, section III-D.2): two grouped
// GEMMs, with one problem per head and sequence, and the softmax fused into both.
//
//   grouped_scores_kernel  computes Q K^T. Its epilogue reduces each row of a tile to a maximum and
//                          a sum, and writes 2^(score - the tile's maximum).
//   grouped_values_kernel  computes P V. Its prologue reduces the maxima and sums of the tiles to
//                          those of the whole row; its main loop rescales each tile of P by one
//                          factor per row.
//
// The grids are persistent, and GroupedScheduler gives every block its tiles. Scores relative to
// their tile's maximum lie in [0, 1], so 16 bits hold them as well as they hold the probabilities
// of any flash-attention kernel. Scores of fully masked tiles are neither written nor read.
#pragma once

#include "core/math.h"
#include "cuda/attention/bytetransformer/grouped_scheduler.cuh"
#include "cuda/attention/limits.h"
#include "cuda/attention/portable/scores.cuh"

namespace packhorse::cuda {

inline constexpr int kGroupedTile = 64;  // queries per tile, and keys per tile
inline constexpr int kGroupedTiles = kGroupedKeys / kGroupedTile;
inline constexpr int kGroupedThreads = 128;

/// The workspace: scores of `heads` heads from `first_head` on. Every query of a head has one row
/// of `row_keys` scores, and one (maximum, sum) per key tile.
struct GroupedScores {
  PortableParams params;
  void* scores;   // 16-bit [heads, Tq, row_keys]
  float2* tiles;  // [heads, Tq, row_keys / kGroupedTile]
  int32_t row_keys;
  int32_t first_head;
  int32_t heads;

  __device__ int64_t row(const QueryTile& tile) const {
    return int64_t{tile.head - first_head} * params.args.queries.num_tokens +
           tile.sequence.q_begin + tile.row;
  }
  template <class T>
  __device__ T* scores_at(const QueryTile& tile, int key_tile) const {
    return static_cast<T*>(scores) + row(tile) * row_keys + key_tile * kGroupedTile;
  }
  __device__ float2* tiles_at(const QueryTile& tile) const {
    return tiles + row(tile) * (row_keys / kGroupedTile);
  }
};

__device__ inline int grouped_tiles(int length) { return ceil_div(length, kGroupedTile); }

template <int kDim>
struct ScoresTraits {
  static constexpr int kTile = kGroupedTile * kPitch<kDim>;
  static constexpr size_t kSharedBytes = 2 * kTile * 2;
};

template <class T, int kDim>
__global__ void __launch_bounds__(kGroupedThreads)
    grouped_scores_kernel(const __grid_constant__ GroupedScores work) {
  using Traits = ScoresTraits<kDim>;
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ GroupedTile queue[32];
  T* const queries = reinterpret_cast<T*>(shared);
  T* const keys = queries + Traits::kTile;
  const PortableParams& params = work.params;
  const int warp_row = static_cast<int>(threadIdx.x) / 32 * 16;
  const AccumulatorPlace place;

  wait_for_previous_kernel();
  let_next_kernel_start();
  GroupedScheduler scheduler;
  while (true) {
    const GroupedTile next = scheduler.next(queue, params.sequences(), [&](int index) {
      const Sequence s = params.sequence(index);
      return params.lengths.contain(s.k_length)
                 ? grouped_tiles(s.q_length) * grouped_tiles(s.k_length) * work.heads
                 : 0;
    });
    if (next.sequence < 0) return;
    QueryTile slab;
    slab.sequence = params.sequence(next.sequence);
    const Sequence& s = slab.sequence;
    const int key_tiles = grouped_tiles(s.k_length);
    const int row_tile = next.tile / key_tiles;
    const int key_tile = next.tile - row_tile * key_tiles;
    slab.head = work.first_head + row_tile / grouped_tiles(s.q_length);
    slab.row = row_tile % grouped_tiles(s.q_length) * kGroupedTile;
    const KeyTiles range(slab, params.window, kGroupedTile, kGroupedTile);
    if (key_tile < range.begin || key_tile >= range.end) continue;

    const int key = key_tile * kGroupedTile;
    __syncthreads();  // all warps are done with the operands of the previous tile
    copy_tile_async<kGroupedTile, kDim, kGroupedThreads>(
        queries, params.q<T>(slab), params.args.q.row_stride, s.q_length - slab.row,
        params.args.head_dim);
    copy_tile_async<kGroupedTile, kDim, kGroupedThreads>(keys, params.k<T>(slab, key),
                                                         params.args.k.row_stride, s.k_length - key,
                                                         params.args.head_dim);
    cute::cp_async_fence();
    cute::cp_async_wait<0>();
    __syncthreads();
    float tile[1][kGroupedTile / 8][4] = {};
    accumulate_scores<T, kDim, kGroupedTile, 1>(tile, queries + warp_row * kPitch<kDim>, keys);
    float (&scores)[kGroupedTile / 8][4] = tile[0];
    finish_scores(scores, params, slab, s.k_length - s.q_length + slab.row + warp_row, key,
                  sees_all(params, slab, kGroupedTile, key, kGroupedTile));
    const float2 maxima = row_maxima(scores);
    float2 sums = {0, 0};
    exponentiate(scores, maxima, sums);
    sums = {quad_sum(sums.x), quad_sum(sums.y)};

    // Scores are stored straight from registers: four lanes write 16 neighbouring bytes of a row,
    // and a warp writes to eight rows at a time.
    T* to = work.scores_at<T>(slab, key_tile);
    float2* reduced = work.tiles_at(slab) + key_tile;
    const int64_t tiles_in_row = work.row_keys / kGroupedTile;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp_row + place.row + half * 8;
      if (slab.row + row >= s.q_length) continue;
#pragma unroll
      for (int n = 0; n < kGroupedTile / 8; ++n) {
        *reinterpret_cast<typename Element<T>::Pair*>(to + int64_t{row} * work.row_keys + n * 8 +
                                                      place.column) =
            Element<T>::pair(scores[n][2 * half], scores[n][2 * half + 1]);
      }
      if (place.column == 0) {
        reduced[row * tiles_in_row] =
            half == 0 ? make_float2(maxima.x, sums.x) : make_float2(maxima.y, sums.y);
      }
    }
  }
}

template <int kDim>
struct ValuesTraits {
  static constexpr int kScores = kGroupedTile * kPitch<kGroupedTile>;
  static constexpr int kValues = kGroupedTile * kPitch<kDim>;
  static constexpr int kStage = kScores + kValues;
  static constexpr size_t kSharedBytes = 2 * kStage * 2;
  static_assert(kStage >= kGroupedTile * kPitch<kDim>, "room for the output's staging");
};

/// Returns the A operand `a` with each of a thread's two rows multiplied by its factor.
template <class T>
__device__ Fragment scale_a(const Fragment& a, float2 factors) {
  using Pair = typename Element<T>::Pair;
  Fragment scaled;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = to_float2(*reinterpret_cast<const Pair*>(&a.x[i]));
    const float factor = i % 2 == 0 ? factors.x : factors.y;
    const Pair result = Element<T>::pair(pair.x * factor, pair.y * factor);
    scaled.x[i] = *reinterpret_cast<const uint32_t*>(&result);
  }
  return scaled;
}

template <class T, int kDim>
__global__ void __launch_bounds__(kGroupedThreads)
    grouped_values_kernel(const __grid_constant__ GroupedScores work) {
  using Traits = ValuesTraits<kDim>;
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ GroupedTile queue[32];
  __shared__ float factors[kGroupedTile][kGroupedTiles + 1];
  T* const stages = reinterpret_cast<T*>(shared);
  const PortableParams& params = work.params;
  const int warp_row = static_cast<int>(threadIdx.x) / 32 * 16;
  const AccumulatorPlace place;

  wait_for_previous_kernel();
  let_next_kernel_start();
  GroupedScheduler scheduler;
  while (true) {
    const GroupedTile next = scheduler.next(queue, params.sequences(), [&](int index) {
      const Sequence s = params.sequence(index);
      return params.lengths.contain(s.k_length) ? grouped_tiles(s.q_length) * work.heads : 0;
    });
    if (next.sequence < 0) return;
    QueryTile slab;
    slab.sequence = params.sequence(next.sequence);
    const Sequence& s = slab.sequence;
    slab.head = work.first_head + next.tile / grouped_tiles(s.q_length);
    slab.row = next.tile % grouped_tiles(s.q_length) * kGroupedTile;
    const KeyTiles range(slab, params.window, kGroupedTile, kGroupedTile);
    const int rows = s.q_length - slab.row;

    __syncthreads();  // the previous tile's output has left the stages, and its factors are used
    const auto fetch = [&](int tile) {
      if (tile < range.end) {
        T* stage = stages + tile % 2 * Traits::kStage;
        const int key = tile * kGroupedTile;
        copy_tile_async<kGroupedTile, kGroupedTile, kGroupedThreads>(
            stage, work.scores_at<T>(slab, tile), work.row_keys, rows, kGroupedTile);
        copy_tile_async<kGroupedTile, kDim, kGroupedThreads>(
            stage + Traits::kScores, params.v<T>(slab, key), params.args.v.row_stride,
            s.k_length - key, params.args.head_dim);
      }
      cute::cp_async_fence();
    };
    fetch(range.begin);

    // The factor of a row and key tile is 2^(tile's maximum - row's maximum) / row's sum.
    if (threadIdx.x < min(rows, kGroupedTile)) {
      const float2* reduced =
          work.tiles_at(slab) + int64_t{threadIdx.x} * (work.row_keys / kGroupedTile);
      float highest = -INFINITY;
      for (int tile = range.begin; tile < range.end; ++tile) {
        highest = fmaxf(highest, reduced[tile].x);
      }
      float sum = 0;
      for (int tile = range.begin; tile < range.end; ++tile) {
        const float2 part = reduced[tile];
        const float factor = part.x == -INFINITY ? 0 : fast_exp2(part.x - highest);
        factors[threadIdx.x][tile] = factor;
        sum += factor * part.y;
      }
      const float inverse = inverse_or_zero(sum);
      for (int tile = range.begin; tile < range.end; ++tile) factors[threadIdx.x][tile] *= inverse;
    }

    float output[kDim / 8][4] = {};
    for (int tile = range.begin; tile < range.end; ++tile) {
      fetch(tile + 1);
      cute::cp_async_wait<1>();
      __syncthreads();
      const T* scores = stages + tile % 2 * Traits::kStage;
      const T* values = scores + Traits::kScores;
      const int row = warp_row + place.row;
      const float2 factor = {row < rows ? factors[row][tile] : 0,
                             row + 8 < rows ? factors[row + 8][tile] : 0};
#pragma unroll
      for (int k = 0; k < kGroupedTile / 16; ++k) {
        const Fragment a = scale_a<T>(load_a<kGroupedTile>(scores, warp_row, k * 16), factor);
#pragma unroll
        for (int n = 0; n < kDim / 16; ++n) {
          const Fragment b = load_b_transposed<kDim>(values, k * 16, n * 16);
          mma<T>(output[2 * n], a, b.x[0], b.x[1]);
          mma<T>(output[2 * n + 1], a, b.x[2], b.x[3]);
        }
      }
      __syncthreads();  // no warp reads this stage when the tile after next overwrites it
    }
    cute::cp_async_wait<0>();
    __syncthreads();
    store_output<T, kDim>(params, slab, warp_row, output, {1, 1}, stages + warp_row * kPitch<kDim>);
  }
}

}  // namespace packhorse::cuda
