// The merge of what several blocks have found in chunks of the same rows, for
// paged_attention_few_kernel.
//
// A warp takes 64 columns of a row. The maximum of all chunks up to one is exact in any order: so
// its lanes find those of 32 chunks, and the factors of their sums, side by side. What is left to
// be done in the order of the chunks is a product and an addition for each, with sums that were
// asked for many at once. The operations on a sum are those of ChunkMerge and merge_chunk.
#pragma once

#include "cuda/attention/attention_pages_few_tiles.cuh"

namespace packhorse::cuda {

/// 32 neighbouring chunks of a row: each lane has the state of one, and how that of the chunks
/// before and that of its own are to be multiplied.
struct ChunksOfLanes {
  float2 state = {-INFINITY, 0};  // of no chunk, which changes nothing
  float2 factors = {1, 0};

  /// `highest`: the maximum of the chunks before these, and then of these as well. Called by whole
  /// warps, after `state` is set.
  __device__ void find_factors(float& highest) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const bool empty = state.y == 0;
    float maximum = empty ? -INFINITY : state.x;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const float below = __shfl_up_sync(kFullWarp, maximum, step);
      if (lane >= step) maximum = fmaxf(maximum, below);
    }
    maximum = fmaxf(highest, maximum);
    float before = __shfl_up_sync(kFullWarp, maximum, 1);
    if (lane == 0) before = highest;
    if (!empty) factors = {fast_exp2(before - maximum), fast_exp2(state.x - maximum)};
    highest = __shfl_sync(kFullWarp, maximum, 31);
  }
};

/// Merges all chunks of the rows from the workspace, and stores the rows. Called by all threads.
template <class Attention>
__device__ void merge_chunks(const Attention& attention, const FewWork& work) {
  constexpr int kParts = Attention::Traits::kDim / 64;  // of a row
  constexpr int kAhead = 16;                            // chunks whose sums are asked for at once
  constexpr int kAtOnce = 8;  // chunks that are left out together past the last one
  const PagedKernelParams& params = attention.params;
  const int head_dim = params.args.head_dim;
  const int count = work.chunks.count();
  const int64_t step = attention.entry_step(work);
#pragma unroll 1
  for (int part = attention.warp; part < Attention::rows_of(work) * kParts;
       part += Attention::Traits::kWarps) {
    const int row = part / kParts;
    const int column = part % kParts * 64 + 2 * attention.lane;
    const bool inside = column < head_dim;
    const int64_t entry = attention.entry_of(work, row);
    const float2* const states = params.state + entry;
    const float* const sums = params.sums + entry * head_dim + column;
    float highest = -INFINITY;
    float sum = 0;
    float2 all = {0, 0};
#pragma unroll 1
    for (int first = 0; first < count; first += 32) {
      ChunksOfLanes chunks;
      if (first + attention.lane < count) {
        chunks.state = __ldcg(states + (first + attention.lane) * step);
      }
#pragma unroll
      for (int ahead = 0; ahead < 32; ahead += kAhead) {
        if (first + ahead >= count) break;
        float2 parts[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; i += kAtOnce) {
          if (first + ahead + i >= count) break;
#pragma unroll
          for (int j = i; j < i + kAtOnce; ++j) {
            const int chunk = first + ahead + j;
            parts[j] = {0, 0};
            if (!inside || chunk >= count) continue;
            parts[j] = __ldcg(reinterpret_cast<const float2*>(sums + chunk * step * head_dim));
          }
        }
        if (ahead == 0) chunks.find_factors(highest);
#pragma unroll
        for (int i = 0; i < kAhead; i += kAtOnce) {
          if (first + ahead + i >= count) break;
#pragma unroll
          for (int j = i; j < i + kAtOnce; ++j) {
            const auto of_chunk = [&](float value) {
              return __shfl_sync(kFullWarp, value, ahead + j);
            };
            const float2 factors = {of_chunk(chunks.factors.x), of_chunk(chunks.factors.y)};
            sum = __fmaf_rn(of_chunk(chunks.state.y), factors.y, __fmul_rn(sum, factors.x));
            all.x = merge_chunk(all.x, parts[j].x, factors);
            all.y = merge_chunk(all.y, parts[j].y, factors);
          }
        }
      }
    }
    if (inside) attention.store(work, row, column, all, sum);
  }
}

}  // namespace packhorse::cuda
