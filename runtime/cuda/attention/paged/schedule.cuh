// Schedule of paged_decode_kernel: the rows and keys that each block computes.
//
// A unit of work is a slab of rows and one chunk of keys of the slab's sequence. Units are numbered
// by sequence, slab, head and chunk, and every block of the grid takes a run of equally many units,
// so that the work is spread evenly however uneven the sequences are. Where the workspace has too
// little room for the partial results of all rows in all chunks, a unit is a slab with all of its
// chunks.
//
// Where many short sequences give a block many units, warps do better by themselves (WarpSchedule).
#pragma once

#include "cuda/attention/paged/decode_sequences.cuh"

namespace packhorse::cuda {

/// Goes through the units of one block. Called by whole warps, each with its own copy of the state.
/// kRows: rows of a slab. kKeys: keys of a chunk. kWarps: warps of a block, each with a tile of the
/// chunk.
template <int kRows, int kKeys, int kWarps>
class DecodeSchedule {
 public:
  static constexpr bool kAlone = false;
  using Sequences = DecodeSequences<kRows, kKeys, kKeys / kWarps>;
  using Sequence = typename Sequences::Sequence;

  __device__ explicit DecodeSchedule(const PagedKernelParams& params)
      : params_(params), sequences_(params) {
    int64_t entries = 0;
    int units = 0;
    int slabs = 0;
    sequences_.for_own([&](const Sequence& mine) {
      most_keys_ = max(most_keys_, mine.keys());
      entries += mine.entries;
      units += mine.chunks.count() * mine.slabs;
      slabs += mine.slabs;
      tiles_ += mine.tiles() * mine.slabs;
    });
    for (int mask = 16; mask > 0; mask /= 2) {
      most_keys_ = max(most_keys_, __shfl_xor_sync(kFullWarp, most_keys_, mask));
    }
    split_ = warp_total(entries) <= params.entries;
    total_ = warp_total(split_ ? units : slabs) * params.args.num_kv_heads;
    share_ = max(1, ceil_div(total_, static_cast<int>(gridDim.x)));
    // Merging chunks of several blocks takes longer than computing a chunk, so slabs stay whole
    // where that lengthens a block's work little.
    const int whole = round_up(share_, ceil_div(most_keys_, kKeys));
    if (split_ && share_ > 1 && whole * 4 <= share_ * 5 && whole <= share_ + kLonger) {
      share_ = whole;
    }
    number_ = static_cast<int>(blockIdx.x) * share_;
    left_ = max(0, min(share_, total_ - number_));
    work_.tile = static_cast<int>(threadIdx.x) / 32;
  }

  /// Returns the tiles of all slabs where warps with slabs of their own are done sooner than
  /// blocks, else 0. A warp, which may have a longest slab more than others, goes through three
  /// tiles in the time that a block takes for two units.
  __device__ int tiles_of_warps() const {
    if (share_ == 1) return 0;
    const int tiles = warp_total(tiles_) * params_.args.num_kv_heads;
    const int longest = ceil_div(most_keys_, kKeys / kWarps);
    const int own = ceil_div(tiles, static_cast<int>(gridDim.x) * kWarps) + longest;
    return 2 * own <= 3 * share_ ? tiles : 0;
  }

  __device__ const Sequences& sequences() const { return sequences_; }
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
  /// Units by which the work of a block may be lengthened so that slabs stay whole.
  static constexpr int kLonger = 2;

  // Goes to the unit of this number. Without a split, a unit is a whole slab.
  __device__ void find(int number) {
    const int heads = params_.args.num_kv_heads;
    int64_t entries = 0;  // workspace entries of the sequences before
    int before = 0;       // units of the sequences before
    sequences_.search([&](int first, const Sequence& mine) {
      const int64_t entries_end = entries + sum_to_lane(mine.entries);
      const int units = mine.slabs * heads * (split_ ? mine.chunks.count() : 1);
      const int units_end = before + sum_to_lane(units);
      const unsigned past = __ballot_sync(kFullWarp, number < units_end);
      if (past == 0) {
        before = __shfl_sync(kFullWarp, units_end, 31);
        entries = __shfl_sync(kFullWarp, entries_end, 31);
        return false;
      }
      const int from = __ffs(static_cast<int>(past)) - 1;
      sequences_.begin(work_, first + from, mine, from);
      work_.entry = __shfl_sync(kFullWarp, entries_end - mine.entries, from);
      const int local = number - __shfl_sync(kFullWarp, units_end - units, from);
      const int count = split_ ? work_.chunks.count() : 1;
      work_.chunk = work_.chunks.first + local % count;
      PagedSlab& slab = work_.slab;
      slab.kv_head = local / count % heads;
      slab.row = local / count / heads * kRows;
      work_.slot = slab.q_begin * params_.group / kRows + slab.sequence + slab.row / kRows;
      count_blocks(number - local % count);
      return true;
    });
  }

  // Counts the blocks of the slab whose first chunk is unit `number`.
  __device__ void count_blocks(int number) {
    work_.blocks = split_ ? (number + work_.chunks.count() - 1) / share_ - number / share_ + 1 : 1;
  }

  const PagedKernelParams& params_;
  const Sequences sequences_;
  int tiles_ = 0;      // tiles of the slabs of this lane's sequences
  int most_keys_ = 1;  // most keys of a sequence, from its first chunk on
  bool split_;
  int total_;
  int share_;   // units of a block
  int left_;    // units of this block after the current one
  int number_;  // number of the current unit
  bool started_ = false;
  DecodeWork work_;
};

}  // namespace packhorse::cuda
