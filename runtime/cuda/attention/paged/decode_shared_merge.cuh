// The share of one block where several merge a slab's chunks together (SlabCounter), divided by
// columns.
#pragma once

#include "cuda/attention/paged/decode_merge.cuh"

namespace packhorse::cuda {

/// Merges all chunks of the rows of a slab, as merge_chunks does, by several blocks.
///
/// A warp merges 32 columns of a row, one in each lane. Sums of kBatch chunks (32 to 128) are
/// copied at once to the shared memory of the warp's tiles, and the next batch is copied while the
/// warp merges this one. The code is short because its instructions are fetched from memory while
/// all blocks wait.
template <class Rows, class Traits>
struct SharedMerge {
  static constexpr int kParts = Traits::kDim / 32;  // parts of a row, 32 columns each
  static constexpr int kWarps = Traits::kWarps;
  /// Chunks of a batch, whose sums fill half of the memory of a warp's tiles.
  static constexpr int kBatch = Traits::kTile * Traits::kElementBytes / 128;
  static constexpr int kOfLane = kBatch / 32;
  static constexpr int kAtOnce = 8;  // chunks that are skipped together past the last one
  static_assert(kBatch * 4 <= Traits::kRows * Traits::kDim);

  const PagedKernelParams& params;
  const DecodeWork& work;
  float* sums;      // two batches of 32 columns: memory of this warp
  float4* factors;  // for each chunk of a batch: the two factors of ChunkMerge, its sum, 0

  /// A batch of chunks from `first` on, for 32 columns of a row: item = row * kParts + part.
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
      states[i] = float2{-INFINITY, 0};  // a missing chunk, which changes nothing
      if (lane * kOfLane + i < end) states[i] = __ldcg(state);
      state += step;
    }
    constexpr int kAcross = 8;  // lanes that copy one chunk, four columns each
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

  /// Writes the factors of a batch to `factors`. `highest`: on entry the maximum of all earlier
  /// chunks, on return that of these as well.
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
