// The rows of a slab for paged_attention_few_kernel: where they lie, and the merge of what several
// blocks have found in chunks of the same rows.
//
// A warp merges a row, or, where the merge is shared, 32 columns of one. The maximum of all chunks
// up to one is exact in any order: so its lanes find those of 32 chunks, and the factors of their
// sums, side by side. What is left to be done in the order of the chunks is a product and an
// addition for each, with sums that were asked for many at once. The operations on a sum are those
// of ChunkMerge and merge_chunk.
#pragma once

#include "cuda/attention/attention_pages_few_tiles.cuh"

namespace packhorse::cuda {

/// The rows of the slab of `work`, and where they lie in the batch and in the workspace. kRows: the
/// most that a slab has.
template <class T_, int kRows>
struct FewRows {
  using T = T_;

  const PagedKernelParams& params;
  const FewWork& work;

  /// Rows of the slab that exist.
  __device__ int count() const { return min(kRows, work.slab.rows - work.slab.row); }

  /// The token of its sequence and the query head that a row of the slab is of.
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

  /// The place in the workspace of what a row finds in the sequence's first chunk; that of the
  /// next chunk is `entry_step` further.
  __device__ int64_t entry(int row) const {
    const Row its = at(row);
    return work.entry + static_cast<int64_t>(its.token) * params.args.num_heads + its.head;
  }
  __device__ int64_t entry_step() const {
    return static_cast<int64_t>(params.token_of(work.slab.rows)) * params.args.num_heads;
  }

  /// Stores two columns of a result.
  __device__ void store(int row, int column, float2 sums, float sum) const {
    const float factor = inverse_or_zero(sum);
    T* out = pointer(static_cast<T*>(params.args.out), params.args.out_row_stride, row);
    *reinterpret_cast<typename Element<T>::Pair*>(out + column) =
        Element<T>::pair(sums.x * factor, sums.y * factor);
  }
};

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

/// Merges all chunks of the rows from the workspace, and stores the rows. Called by all threads.
template <class Rows, int kDim, int kWarps>
__device__ void merge_chunks(const PagedKernelParams& params, const FewWork& work) {
  constexpr int kPairs = kDim / 64;             // of neighbouring columns, that a lane has
  constexpr int kAhead = kPairs <= 2 ? 16 : 8;  // chunks that are asked for at once
  constexpr int kAtOnce = 8;  // chunks that are left out together past the last one
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
  for (int row = warp; row < rows.count(); row += kWarps) {
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

/// The merge of all chunks of the rows by several blocks, as merge_chunks does it alone.
///
/// A warp merges 32 columns of a row, of which each lane has one. They are copied to where the
/// warp's tiles lay, for a hundred chunks or so at once, and those of the next chunks or columns
/// while it merges these. Its code is short, since it comes from memory when all wait for it.
template <class Rows, class Traits>
struct SharedMerge {
  static constexpr int kParts = Traits::kDim / 32;  // of a row
  static constexpr int kWarps = Traits::kWarps;
  /// Chunks of a batch, for which half of a warp's tiles has room.
  static constexpr int kBatch = Traits::kTile / 64;
  static constexpr int kOfLane = kBatch / 32;
  static constexpr int kAtOnce = 8;  // chunks that are left out together past the last one
  static_assert(kBatch * 4 <= Traits::kRows * Traits::kDim);

  const PagedKernelParams& params;
  const FewWork& work;
  float* sums;      // two batches of 32 columns: memory of this warp
  float4* factors;  // of a batch: those of ChunkMerge, and the chunk's sum

  /// A batch of chunks from `first` on, for 32 columns of a row.
  struct Batch {
    int item, first;
  };

  /// Merges the columns of share `share` of `mergers`, and stores them. Called by whole warps.
  __device__ void merge(int share, int mergers) const {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const Rows rows{params, work};
    const int items = rows.count() * kParts;
    const int count = work.chunks.count();
    Batch next{share + warp * mergers, 0};
    Batch asked{items, 0};
    float2 states[kOfLane] = {};
    float highest = -INFINITY;
    float sum = 0;
    float all = 0;
#pragma unroll 1
    for (int turn = 0;; ++turn) {
      const Batch now = asked;
      float2 of_now[kOfLane];
#pragma unroll
      for (int i = 0; i < kOfLane; ++i) of_now[i] = states[i];
      asked = next;
      if (asked.item < items) {
        ask(asked, turn % 2, states);
        next.first += kBatch;
        if (next.first >= count) next = {asked.item + kWarps * mergers, 0};
      }
      cute::cp_async_fence();
      if (turn > 0) {
        find_factors(of_now, highest);
        cute::cp_async_wait<1>();
        __syncwarp();
        const float* const here = sums + (turn - 1) % 2 * (kBatch * 32) + lane;
        const int end = min(kBatch, count - now.first);
#pragma unroll 1
        for (int first = 0; first < end; first += kAtOnce) {
          float4 how[kAtOnce];
          float parts[kAtOnce];
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) {
            how[i] = factors[first + i];
            parts[i] = here[(first + i) * 32];
          }
          __syncwarp();  // all are loaded before the first is used
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) {
            all = merge_chunk(all, parts[i], {how[i].x, how[i].y});
            sum = __fmaf_rn(how[i].z, how[i].y, __fmul_rn(sum, how[i].x));
          }
        }
        __syncwarp();  // sums and factors have been read
        if (now.first + kBatch >= count) {
          const float right = __shfl_down_sync(kFullWarp, all, 1);
          const int column = now.item % kParts * 32 + lane;
          if (column < params.args.head_dim && lane % 2 == 0) {
            rows.store(now.item / kParts, column, {all, right}, sum);
          }
          highest = -INFINITY;
          sum = all = 0;
        }
      }
      if (asked.item >= items) return;
    }
  }

 private:
  /// Starts copying the sums of a batch, and loads the states of this lane's chunks, which are
  /// neighbours.
  __device__ void ask(const Batch& batch, int half, float2 (&states)[kOfLane]) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const Rows rows{params, work};
    const int head_dim = params.args.head_dim;
    const int64_t step = rows.entry_step();
    const int64_t entry = rows.entry(batch.item / kParts) + batch.first * step;
    const int end = min(kBatch, work.chunks.count() - batch.first);
    const float2* state = params.state + entry + lane * kOfLane * step;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      states[i] = float2{-INFINITY, 0};  // of no chunk, which changes nothing
      if (lane * kOfLane + i < end) states[i] = __ldcg(state);
      state += step;
    }
    constexpr int kAcross = 8;  // lanes, which copy four columns each
    constexpr int kAtATime = 32 / kAcross;
    constexpr int kTurn = 4 * kAtATime;
    const int mine = lane / kAcross;
    const int column = batch.item % kParts * 32 + lane % kAcross * 4;
    if (column >= head_dim) return;
    const int64_t further = kAtATime * step * head_dim;
    const float* from = params.sums + (entry + mine * step) * head_dim + column;
    float* to = sums + half * (kBatch * 32) + mine * 32 + lane % kAcross * 4;
#pragma unroll 1
    for (int chunk = mine; chunk < end; chunk += kTurn) {
#pragma unroll
      for (int i = 0; i < kTurn; i += kAtATime) {
        if (chunk + i < end) copy_vector_async(to + i * 32, from);
        from += further;
      }
      to += kTurn * 32;
    }
  }

  /// Leaves the factors of a batch where all lanes read them. `highest`: the maximum of the chunks
  /// before, and then of these as well.
  __device__ void find_factors(const float2 (&states)[kOfLane], float& highest) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const auto with = [](float maximum, float2 state) {
      return state.y == 0 ? maximum : fmaxf(maximum, state.x);
    };
    float maximum = -INFINITY;  // up to this lane's last chunk
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) maximum = with(maximum, states[i]);
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const float below = __shfl_up_sync(kFullWarp, maximum, step);
      if (lane >= step) maximum = fmaxf(maximum, below);
    }
    float before = __shfl_up_sync(kFullWarp, maximum, 1);
    before = lane == 0 ? highest : fmaxf(highest, before);
    highest = fmaxf(highest, __shfl_sync(kFullWarp, maximum, 31));
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const float2 state = states[i];
      const bool empty = state.y == 0;
      const float after = with(before, state);
      factors[lane * kOfLane + i] = {empty ? 1 : fast_exp2(before - after),
                                     empty ? 0 : fast_exp2(state.x - after), state.y, 0};
      before = after;
    }
  }
};

}  // namespace packhorse::cuda
