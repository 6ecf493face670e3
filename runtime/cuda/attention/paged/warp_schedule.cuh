// Schedule of paged_decode_kernel for many short sequences: every warp has slabs of its own.
//
// The warps of a block would wait for one another at the end of each slab, and most would have no
// keys of it. So tiles are numbered by sequence, slab, head and key, and each warp of the grid
// takes the slabs whose first tile lies in its share of these numbers: all shares have about as
// many tiles, however uneven the sequences are.
#pragma once

#include "cuda/attention/paged/decode_sequences.cuh"

namespace packhorse::cuda {

/// Goes through the tiles of the slabs of one warp, as DecodeSchedule does through the units of a
/// block, and with its parameters. Called by whole warps.
template <int kRows, int kKeys, int kWarps>
class WarpSchedule {
 public:
  static constexpr bool kAlone = true;
  using Sequences = DecodeSequences<kRows, kKeys, kKeys / kWarps>;
  using Sequence = typename Sequences::Sequence;

  /// `tiles`: those of all slabs.
  __device__ WarpSchedule(const Sequences& sequences, int tiles) : sequences_(sequences) {
    const int blocks = static_cast<int>(gridDim.x);
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int share = ceil_div(tiles, blocks * kWarps);
    number_ = (warp * blocks + static_cast<int>(blockIdx.x)) * share;
    end_ = min(number_ + share, tiles);
  }

  __device__ const DecodeWork& work() const { return work_; }
  /// Returns whether the slab has another tile.
  __device__ bool continues() const {
    return work_.chunk * kKeys + (work_.tile + 1) * (kKeys / kWarps) < work_.slab.kv_length;
  }

  /// Goes to the next tile, at the first call to the first one. Returns false where there is none.
  __device__ bool next() {
    PagedSlab& slab = work_.slab;
    if (!started_) {
      started_ = true;
      find();
      return number_ < end_;
    }
    if (continues()) {
      if (++work_.tile == kWarps) {
        work_.tile = 0;
        ++work_.chunk;
      }
      return true;
    }
    number_ += tiles_;
    if (number_ >= end_) return false;
    work_.tile = 0;
    work_.chunk = work_.chunks.first;
    if (++slab.kv_head == sequences_.params.args.num_kv_heads) {
      slab.kv_head = 0;
      slab.row += kRows;
    }
    if (slab.row >= slab.rows) begin_next();
    return true;
  }

 private:
  // Goes to the first slab that begins at tile number_ or later.
  __device__ void find() {
    const int heads = sequences_.params.args.num_kv_heads;
    int before = 0;  // tiles of the sequences before
    bool found = false;
    if (number_ < end_) {
      sequences_.search([&](int first, const Sequence& mine) {
        const int tiles = mine.tiles();
        const int own = mine.slabs * heads * tiles;
        const int tiles_end = before + sum_to_lane(own);
        const unsigned past = __ballot_sync(kFullWarp, own > 0 && number_ <= tiles_end - tiles);
        if (past == 0) {
          before = __shfl_sync(kFullWarp, tiles_end, 31);
          return false;
        }
        const int from = __ffs(static_cast<int>(past)) - 1;
        begin(first + from, mine, from);
        const int begin_of_all = __shfl_sync(kFullWarp, tiles_end - own, from);
        const int slab = ceil_div(max(0, number_ - begin_of_all), tiles_);
        number_ = begin_of_all + slab * tiles_;
        work_.slab.kv_head = slab % heads;
        work_.slab.row = slab / heads * kRows;
        found = true;
        return true;
      });
    }
    if (!found) number_ = end_;
  }

  // Goes to the next sequence that has rows; there is one.
  __device__ void begin_next() {
    Sequence one;
    int number = work_.slab.sequence;
    do {
      one = Sequence(sequences_.params, ++number);
    } while (one.slabs == 0);
    begin(number, one, 0);
    work_.slab.kv_head = 0;
    work_.slab.row = 0;
  }

  __device__ void begin(int number, const Sequence& mine, int from) {
    sequences_.begin(work_, number, mine, from);
    tiles_ = __shfl_sync(kFullWarp, mine.tiles(), from);
    work_.chunk = work_.chunks.first;
    work_.tile = 0;
  }

  const Sequences& sequences_;
  int number_;     // first tile of the current slab
  int end_;        // end of this warp's share
  int tiles_ = 0;  // tiles of the current slab
  bool started_ = false;
  DecodeWork work_;
};

}  // namespace packhorse::cuda
