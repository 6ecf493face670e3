// Decides which blocks merge the chunks of a slab when several blocks have computed some of them.
//
// Each block increments the slab's counter when it has stored its chunks. Where there is little to
// merge, the last block to arrive merges everything. Where there is more, the last ones to arrive,
// up to kMostMergers, merge a share each, and wait until the very last has arrived. The block that
// has the slab's last chunks may go on with further slabs. It arrives early and does not wait,
// because other blocks may wait for those slabs.
//
// Waiting is safe while all blocks of the grid are resident, and nearly always they are:
//
//   - The grid has no more blocks than fit the device at once (launch_paged_decode).
//   - The kernels before this one, whose blocks may still be resident, end without it. All their
//     blocks have started when the first one of this kernel does (launch.cuh).
//   - The blocks of the next kernel start when all blocks of this one have called
//     let_next_kernel_start(), so they take no room that a block of this one needs.
//
// A kernel of another stream or process can hold that room, though, and may wait in the same way.
// So no block waits forever: after kTries it gives up its share, and the last block merges that,
// too; one atomic operation on the counter decides between the two. If the last block is the one
// that goes on with further slabs, it merges everything: shares that others merge at the same time
// have the same bits.
#pragma once

#include <cstdint>

#include "cuda/attention/paged/schedule.cuh"

namespace packhorse::cuda {

/// Rows times chunks for each warp of a block from which on blocks share the merge.
inline constexpr int kSharedWork = 16;
/// Most chunks of a shared merge for which a warp merges a whole row: those whose sums it loads at
/// once in heads of up to 128 columns.
inline constexpr int kDecodeChunks = 16;
/// Most blocks that share a merge.
inline constexpr int kMostMergers = 16;

/// The counter of a slab, zero before and after a launch. One thread uses it for its block, after a
/// barrier that orders the other threads' writes before it: its release covers all of them (PTX
/// ISA, memory consistency model, causality order).
class SlabCounter {
 public:
  /// Most blocks of a grid.
  static constexpr int kMostBlocks = 1023;

  __device__ explicit SlabCounter(unsigned* counter) : counter_(counter) {}

  /// Counts a block that does not share the merge among the `blocks` that have stored their chunks.
  /// Returns whether it has to merge all chunks, which are then visible to it. `has_more`: it has
  /// further units. mergers(): how many other blocks share the merge, or 0.
  template <class Mergers>
  __device__ bool arrive(int blocks, bool has_more, Mergers mergers) const {
    const unsigned before = add_and_see(has_more ? 1 + kGoesOn : 1);
    if (arrived(before) != blocks - 1) return false;
    const int others = has_more ? mergers() : 0;
    if (others > 0 && before >> kGivenUpAt == 0) return false;
    if (others == 0 || leavers(before) == others) *counter_ = 0;
    return true;
  }

  /// Counts a block without further units among the `blocks`, of which `enders` have none. Returns
  /// the bit set of those of the `mergers` shares of the merge that it has to do; the chunks of all
  /// blocks are then visible to it.
  __device__ unsigned arrive_to_share(int blocks, int enders, int mergers) {
    const unsigned before = add_and_see(1);
    const int goes_on = (before & kGoesOn) != 0 ? 1 : 0;
    const int place = arrived(before) - goes_on - (enders - mergers);
    if (place < 0) return 0;
    const unsigned share = 1U << place;
    if (arrived(before) == blocks - 1) {
      before_leaving_ = add(kLeaver);
      return share | before >> kGivenUpAt;
    }
#pragma unroll 1
    for (int tries = kTries; tries > 0; --tries) {
      if (arrived(look()) < blocks) continue;
      before_leaving_ = add(kLeaver);
      return share;
    }
    before_leaving_ = add_and_see(kLeaver + (share << kGivenUpAt));
    return arrived(before_leaving_) == blocks ? share : 0;  // otherwise the last block does it
  }

  /// Ends a share of the merge. The last block to leave resets the counter.
  __device__ void leave(int mergers) const {
    if (leavers(before_leaving_) == mergers - 1) *counter_ = 0;
  }

 private:
  // Bits of the counter, from the lowest on: the number of blocks that have arrived (10), whether
  // one of them goes on with further slabs (1), the number of mergers that have left (5), and a bit
  // for each share that was given up (16).
  static constexpr unsigned kGoesOn = kMostBlocks + 1;
  static constexpr unsigned kLeaver = 2 * kGoesOn;
  static constexpr int kGivenUpAt = 16;
  static_assert(kLeaver * kMostMergers * 2 == 1U << kGivenUpAt && kMostMergers == 16);
  /// Tries before a share is given up. A try takes about 0.5 us, so all of them outlast nearly
  /// every delay between blocks of a grid.
  static constexpr int kTries = 100;

  __device__ static int arrived(unsigned count) { return static_cast<int>(count % kGoesOn); }
  __device__ static int leavers(unsigned count) {
    return static_cast<int>(count / kLeaver % (kMostMergers * 2));
  }
  __device__ unsigned look() const {
    unsigned value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter_) : "memory");
    return value;
  }
  __device__ unsigned add_and_see(unsigned value) const {
    unsigned before;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(counter_), "r"(value)
                 : "memory");
    return before;
  }
  /// Adds in relaxed memory order, since no other access depends on it.
  __device__ unsigned add(unsigned value) const {
    unsigned before;
    asm volatile("atom.add.relaxed.gpu.global.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(counter_), "r"(value));
    return before;
  }

  unsigned* counter_;
  unsigned before_leaving_ = 0;
};

}  // namespace packhorse::cuda
