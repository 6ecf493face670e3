// The rows of a slab for paged_decode_kernel: where they lie, and the merge of the partial results
// that several blocks have computed for chunks of the same rows.
//
// A warp merges a row. The maximum over chunks is exact in any order, so the lanes compute the
// maxima of 32 chunks, and the factors of their sums, side by side. Only one product and one
// addition per chunk have to follow the order of the chunks, and their sums are loaded many at
// once. The operations on a sum are those of ChunkMerge and merge_chunk.
#pragma once

#include "cuda/attention/paged/decode_tiles.cuh"

namespace packhorse::cuda {

/// Rows of the slab of `work`, and their addresses in the batch and in the workspace. kRows: the
/// most rows of a slab.
template <class T_, int kRows>
struct DecodeRows {
  using T = T_;

  const PagedKernelParams& params;
  const DecodeWork& work;

  /// Returns how many rows of the slab exist.
  __device__ int count() const { return min(kRows, work.slab.rows - work.slab.row); }

  /// The token of the sequence and the query head that a row of the slab belongs to.
  struct Row {
    int token;
    int head;
  };
  __device__ Row at(int row) const {
    const int r = work.slab.row + row;
    const int token = params.token_of(r);
    const int group = params.group;
    return {token, work.slab.kv_head * group + r - token * group};
  }
  template <class Base>
  __device__ Base* pointer(Base* base, int64_t stride, int row) const {
    const Row its = at(row);
    return base + (work.slab.q_begin + its.token) * stride +
           static_cast<int64_t>(its.head) * params.args.head_dim;
  }

  /// Returns the workspace entry of a row for the sequence's first chunk; entries of successive
  /// chunks are entry_step() apart.
  __device__ int64_t entry(int row) const {
    const Row its = at(row);
    return work.entry + static_cast<int64_t>(its.token) * params.args.num_heads + its.head;
  }
  __device__ int64_t entry_step() const {
    return static_cast<int64_t>(params.token_of(work.slab.rows)) * params.args.num_heads;
  }

  /// Stores a column, or two neighbours, of a result.
  __device__ void store(int row, int column, float value, float sum) const {
    T* out = pointer(static_cast<T*>(params.args.out.data), params.args.out.row_stride, row);
    out[column] = Element<T>::from(value * inverse_or_zero(sum));
  }
  __device__ void store(int row, int column, float2 sums, float sum) const {
    const float factor = inverse_or_zero(sum);
    T* out = pointer(static_cast<T*>(params.args.out.data), params.args.out.row_stride, row);
    *reinterpret_cast<typename Element<T>::Pair*>(out + column) =
        Element<T>::pair(sums.x * factor, sums.y * factor);
  }
};

/// States of 32 neighbouring chunks of a row, one in each lane, and the factors of merging each: x
/// for the sums merged before it, y for its own.
struct ChunksOfLanes {
  float2 state = {-INFINITY,
                  0};  // maximum and sum; initially those of a missing chunk, which change nothing
  float2 factors = {1, 0};

  /// Computes the factors. `highest`: on entry the maximum of all earlier chunks, on return that of
  /// these as well. Called by whole warps, after `state` is set.
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

/// Loads neighbouring columns of a chunk's sums, or sets them to zeros.
template <int kPairs>
__device__ void load_sums(float2 (&to)[kPairs], const float* from, bool exists) {
  if constexpr (kPairs == 1) {
    to[0] = exists ? __ldcg(reinterpret_cast<const float2*>(from)) : float2{0, 0};
  } else {
#pragma unroll
    for (int i = 0; i < kPairs; i += 2) {
      float4 both = {0, 0, 0, 0};
      if (exists) both = __ldcg(reinterpret_cast<const float4*>(from + 2 * i));
      to[i] = {both.x, both.y};
      to[i + 1] = {both.z, both.w};
    }
  }
}

/// Merges all chunks of the slab's rows from the workspace, and stores share `share` of `mergers`
/// of the rows. Called by all threads.
template <class Rows, int kDim, int kWarps>
__device__ void merge_chunks(const PagedKernelParams& params, const DecodeWork& work, int share = 0,
                             int mergers = 1) {
  constexpr int kPairs = kDim / 64;             // pairs of neighbouring columns that a lane has
  constexpr int kAhead = kPairs <= 2 ? 16 : 8;  // chunks whose sums are loaded at once
  constexpr int kAtOnce = 8;  // chunks that are skipped together past the last one
  using Sums = float2[kPairs];
  const Rows rows{params, work};
  const int head_dim = params.args.head_dim;
  const int count = work.chunks.count();
  const int64_t step = rows.entry_step();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int column = lane * 2 * kPairs;
  const bool inside = column < head_dim;
#pragma unroll 1
  for (int row = share + warp * mergers; row < rows.count(); row += kWarps * mergers) {
    const int64_t entry = rows.entry(row);
    const float2* const states = params.state + entry;
    const float* const sums = params.sums + entry * head_dim + column;
    float highest = -INFINITY;
    float sum = 0;
    Sums all = {};
#pragma unroll 1
    for (int first = 0; first < count; first += 32) {
      ChunksOfLanes chunks;
      if (first + lane < count) chunks.state = __ldcg(states + (first + lane) * step);
#pragma unroll
      for (int ahead = 0; ahead < 32; ahead += kAhead) {
        if (first + ahead >= count) break;
        Sums parts[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; i += kAtOnce) {
          if (first + ahead + i >= count) break;
#pragma unroll
          for (int j = i; j < i + kAtOnce; ++j) {
            const int chunk = first + ahead + j;
            load_sums(parts[j], sums + chunk * step * head_dim, inside && chunk < count);
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
#pragma unroll
            for (int pair = 0; pair < kPairs; ++pair) {
              all[pair].x = merge_chunk(all[pair].x, parts[j][pair].x, factors);
              all[pair].y = merge_chunk(all[pair].y, parts[j][pair].y, factors);
            }
          }
        }
      }
    }
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      if (inside) rows.store(row, column + 2 * pair, all[pair], sum);
    }
  }
}

}  // namespace packhorse::cuda
