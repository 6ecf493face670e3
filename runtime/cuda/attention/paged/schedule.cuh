// Schedule of paged_decode_kernel: the rows and keys that each block computes.
//
// A unit of work is a slab of rows and one chunk of keys of the slab's sequence. Units are numbered
// by sequence, slab, head and chunk, and every block of the grid takes a run of equally many units,
// so that the work is spread evenly however uneven the sequences are. Where the workspace has too
// little room for the partial results of all rows in all chunks, a unit is a slab with all of its
// chunks.
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

/// A unit: a slab and one of its chunks, with what the merge needs to know of the slab's other
/// chunks.
struct DecodeWork {
  PagedSlab slab;
  ChunkRange chunks{{}, 0, 0, 1};  // chunks of the sequence
  int chunk = 0;
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

/// Goes through the units of one block. Called by whole warps, each with its own copy of the state;
/// a lane looks at every 32nd sequence. kRows: rows of a slab. kKeys: keys of a chunk.
template <int kRows, int kKeys>
class DecodeSchedule {
 public:
  __device__ explicit DecodeSchedule(const PagedKernelParams& params)
      : params_(params), first_(params, 0), sequences_(params.sequences()) {
    int64_t entries = 0;
    int units = 0;
    int slabs = 0;
    int most_chunks = 1;
    for (int first = 0; first < sequences_; first += 32) {
      const Sequence mine = sequences_at(first);
      most_chunks = max(most_chunks, mine.chunks.count());
      entries += mine.entries;
      units += mine.chunks.count() * mine.slabs;
      slabs += mine.slabs;
    }
    for (int mask = 16; mask > 0; mask /= 2) {
      most_chunks = max(most_chunks, __shfl_xor_sync(kFullWarp, most_chunks, mask));
    }
    split_ = warp_total(entries) <= params.entries;
    total_ = warp_total(split_ ? units : slabs) * params.args.num_kv_heads;
    const int blocks = static_cast<int>(gridDim.x);
    share_ = max(1, ceil_div(total_, blocks));
    // Merging chunks of several blocks takes longer than computing a chunk, so slabs stay whole
    // where that lengthens a block's work by a quarter at most.
    const int whole = round_up(share_, most_chunks);
    if (split_ && share_ > 1 && whole * 4 <= share_ * 5) share_ = whole;
    number_ = static_cast<int>(blockIdx.x) * share_;
    left_ = max(0, min(share_, total_ - number_));
  }

  __device__ const DecodeWork& work() const { return work_; }
  /// Returns whether the unit after this one has the same slab.
  __device__ bool continues() const {
    return work_.chunk + 1 < work_.chunks.end && (!split_ || left_ > 0);
  }

  /// Returns, after this block's last unit, whether the block that has the last chunk of the same
  /// slab goes on to other slabs.
  __device__ bool slab_goes_on() const {
    const int end = number_ + work_.chunks.end - work_.chunk;
    return end < total_ && end % share_ != 0;
  }

  /// Goes to the next unit, at the first call to the first one. Returns false where there is none.
  __device__ bool next() {
    if (started_) {
      const bool same = continues();
      if (!same && left_ == 0) return false;
      if (!same || split_) {
        --left_;
        ++number_;
      }
      ++work_.chunk;
      if (same) return true;
      work_.chunk = work_.chunks.first;
      PagedSlab& slab = work_.slab;
      if (++slab.kv_head == params_.args.num_kv_heads) {
        slab.kv_head = 0;
        slab.row += kRows;
        ++work_.slot;
      }
      if (slab.row < slab.rows) {
        count_blocks(number_);
        return true;
      }
    } else {
      if (left_ == 0) return false;
      --left_;
      started_ = true;
    }
    find(number_);
    return true;
  }

 private:
  struct Sequence {
    int q_begin = 0;
    int rows = 0;
    int slabs = 0;
    int kv_length = 0;
    int64_t entries = 0;
    ChunkRange chunks{{}, 0, 0, 1};

    Sequence() = default;
    /// Loads this lane's sequence of the 32 from `first` on, up to the bound num_sequences, which
    /// is known without reading device memory.
    __device__ Sequence(const PagedKernelParams& params, int first) {
      const int b = first + static_cast<int>(threadIdx.x) % 32;
      if (b >= params.args.queries.num_sequences) return;
      q_begin = params.args.queries.cu_seqlens[b];
      const int q_length = params.args.queries.cu_seqlens[b + 1] - q_begin;
      rows = q_length * params.group;
      slabs = ceil_div(rows, kRows);
      kv_length = params.args.pages.kv_lens[b];
      chunks = ChunkRange(params.window, kv_length - q_length, kv_length, kKeys);
      entries = static_cast<int64_t>(chunks.count()) * q_length * params.args.num_heads;
    }
  };

  /// Returns this lane's sequence of the 32 from `first` on. The first 32 were loaded together with
  /// the exact number of sequences.
  __device__ Sequence sequences_at(int first) const {
    if (first + static_cast<int>(threadIdx.x) % 32 >= sequences_) return {};
    return first == 0 ? first_ : Sequence(params_, first);
  }

  template <class Value>
  __device__ static Value warp_total(Value value) {
    return __shfl_sync(kFullWarp, sum_to_lane(value), 31);
  }

  // Goes to the unit of this number. Without a split, a unit is a whole slab.
  __device__ void find(int number) {
    const int heads = params_.args.num_kv_heads;
    int64_t entries = 0;  // workspace entries of the sequences before
    int before = 0;       // units of the sequences before
    for (int first = 0; first < sequences_; first += 32) {
      const Sequence mine = sequences_at(first);
      const int64_t entries_end = entries + sum_to_lane(mine.entries);
      const int units = mine.slabs * heads * (split_ ? mine.chunks.count() : 1);
      const int units_end = before + sum_to_lane(units);
      const unsigned past = __ballot_sync(kFullWarp, number < units_end);
      if (past != 0) {
        const int from = __ffs(static_cast<int>(past)) - 1;
        const auto take = [&](auto value) { return __shfl_sync(kFullWarp, value, from); };
        PagedSlab& slab = work_.slab;
        slab.sequence = first + from;
        slab.q_begin = take(mine.q_begin);
        slab.rows = take(mine.rows);
        slab.kv_length = take(mine.kv_length);
        slab.position = slab.kv_length - slab.rows / params_.group;
        work_.chunks.first = take(mine.chunks.first);
        work_.chunks.end = take(mine.chunks.end);
        work_.entry = take(entries_end - mine.entries);
        const int local = number - take(units_end - units);
        const int count = split_ ? work_.chunks.count() : 1;
        work_.chunk = work_.chunks.first + local % count;
        slab.kv_head = local / count % heads;
        slab.row = local / count / heads * kRows;
        work_.slot = slab.q_begin * params_.group / kRows + slab.sequence + slab.row / kRows;
        count_blocks(number - local % count);
        return;
      }
      before = __shfl_sync(kFullWarp, units_end, 31);
      entries = __shfl_sync(kFullWarp, entries_end, 31);
    }
  }

  // Counts the blocks of the slab whose first chunk is unit `number`.
  __device__ void count_blocks(int number) {
    work_.blocks = split_ ? (number + work_.chunks.count() - 1) / share_ - number / share_ + 1 : 1;
  }

  const PagedKernelParams& params_;
  const Sequence first_;
  const int sequences_;
  bool split_;
  int total_;
  int share_;   // units of a block
  int left_;    // units of this block after the current one
  int number_;  // number of the current unit
  bool started_ = false;
  DecodeWork work_;
};

}  // namespace packhorse::cuda
