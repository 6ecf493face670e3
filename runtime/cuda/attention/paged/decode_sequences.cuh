// The sequences of a step as paged_decode_kernel divides them: slabs of rows, and chunks of keys.
//
// Warps look at 32 sequences at a time, one in each lane.
#pragma once

#include "core/math.h"
#include "cuda/attention/paged/kernel.cuh"

namespace packhorse::cuda {

/// Chunks of a sequence that queries of this step see: [first, end). A sequence without keys has
/// one chunk, which is empty, so that a block writes zeros to its rows.
struct ChunkRange {
  int first, end;
  __device__ ChunkRange(const KeyWindow& window, int position, int kv_length, int chunk_keys) {
    first = max(0, position - window.left) / chunk_keys;
    end = max(first + 1, ceil_div(kv_length, chunk_keys));
  }
  __device__ int count() const { return end - first; }
};

/// Work of a warp at a time: a tile of one chunk for a slab of rows, with what the merge
/// needs to know of the slab's other chunks.
struct DecodeWork {
  PagedSlab slab;
  ChunkRange chunks{{}, 0, 0, 1};  // chunks of the sequence
  int chunk = 0;
  int tile = 0;       // tile of the chunk
  int blocks = 1;     // number of blocks that have chunks of these rows
  int slot = 0;       // number of the slab in the step
  int64_t entry = 0;  // first entry of the sequence in the workspace
};

/// Inclusive prefix sum over the lanes of a warp.
template <class Value>
__device__ Value sum_to_lane(Value value) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const Value before = __shfl_up_sync(kFullWarp, value, step);
    if (lane >= step) value += before;
  }
  return value;
}

template <class Value>
__device__ Value warp_total(Value value) {
  return __shfl_sync(kFullWarp, sum_to_lane(value), 31);
}

/// Called by whole warps. kRows: rows of a slab. kChunk, kTile: keys of a chunk and of a tile.
template <int kRows, int kChunk, int kTile>
class DecodeSequences {
 public:
  struct Sequence {
    int q_begin = 0;
    int rows = 0;
    int slabs = 0;
    int kv_length = 0;
    int64_t entries = 0;
    ChunkRange chunks{{}, 0, 0, 1};

    Sequence() = default;
    __device__ Sequence(const PagedKernelParams& params, int b) {
      q_begin = params.args.queries.cu_seqlens[b];
      const int q_length = params.args.queries.cu_seqlens[b + 1] - q_begin;
      rows = q_length * params.group;
      slabs = ceil_div(rows, kRows);
      kv_length = params.args.pages.kv_lens[b];
      chunks = ChunkRange(params.window, kv_length - q_length, kv_length, kChunk);
      entries = static_cast<int64_t>(chunks.count()) * q_length * params.args.num_heads;
    }

    /// Keys from the first chunk on.
    __device__ int keys() const { return kv_length - chunks.first * kChunk; }
    /// Tiles of a slab; one where there are no keys.
    __device__ int tiles() const { return max(1, ceil_div(keys(), kTile)); }
  };

  __device__ explicit DecodeSequences(const PagedKernelParams& params)
      : params(params),
        lane_(static_cast<int>(threadIdx.x) % 32),
        first_(lane_ < params.args.queries.num_sequences ? Sequence(params, lane_) : Sequence()),
        count_(params.sequences()) {}

  /// Calls body(sequence) for every 32nd one from the lane's own number on.
  template <class Body>
  __device__ void for_own(Body body) const {
    if (lane_ < count_) body(first_);
#pragma unroll 4
    for (int b = lane_ + 32; b < count_; b += 32) body(Sequence(params, b));
  }

  /// Calls visit(number of lane 0's sequence, this lane's) for 32 sequences after the others, until
  /// it returns true. Sequences that do not exist have no rows.
  template <class Visit>
  __device__ void search(Visit visit) const {
#pragma unroll 1
    for (int first = 0; first < count_; first += 32) {
      Sequence mine;
      if (first == 0 && lane_ < count_) mine = first_;
      if (first > 0 && first + lane_ < count_) mine = Sequence(params, first + lane_);
      if (visit(first, mine)) return;
    }
  }

  /// Begins `work` at the first rows of the sequence that lane `from` has: sequence `number`.
  __device__ void begin(DecodeWork& work, int number, const Sequence& mine, int from) const {
    const auto take = [&](int value) { return __shfl_sync(kFullWarp, value, from); };
    PagedSlab& slab = work.slab;
    slab.sequence = number;
    slab.q_begin = take(mine.q_begin);
    slab.rows = take(mine.rows);
    slab.kv_length = take(mine.kv_length);
    slab.position = slab.kv_length - slab.rows / params.group;
    work.chunks.first = take(mine.chunks.first);
    work.chunks.end = take(mine.chunks.end);
  }

  const PagedKernelParams& params;

 private:
  const int lane_;
  const Sequence first_;  // loaded together with the number of sequences, by its bound
  const int count_;
};

}  // namespace packhorse::cuda
