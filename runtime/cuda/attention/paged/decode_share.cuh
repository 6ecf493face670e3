// Decides which blocks merge the chunks of a slab, where several blocks have computed some of them.
//
// Each block counts itself when it has stored its chunks. Where there is little to merge, the block
// that comes last does it all. Where there is more, the blocks that come last, up to kMostMergers,
// merge a share each: those that come before the very last wait until it has come. One block may
// have chunks of further slabs: the one which has the slab's last chunks. It comes early and does
// not wait, as others may wait for the slabs that it goes on with.
//
// Such waiting is safe where all blocks of the grid are on the device, and nearly always they are:
//
//   - The grid has no more blocks than fit the device at once (launch_paged_decode).
//   - The kernels before this one, whose blocks may still have their places, end without it. All
//     their blocks have started when the first one of this kernel does (launch.cuh).
//   - The blocks of the next kernel start when all blocks of this one have called
//     let_next_kernel_start(), so they take no place that a block of this one needs.
//
// But a kernel of another stream or process can have those places, and may wait in the same way.
// So no block waits without end: after a while it gives its share up, which one atomic operation on
// the counter decides between it and the last block, and the last block merges that share, too. If
// that is the block which has chunks of further slabs, it merges all: what others merge at the same
// time has the same bits.
#pragma once

#include <cstdint>

#include "cuda/attention/paged/schedule.cuh"

namespace packhorse::cuda {

/// Most rows times chunks that a warp merges alone; above that, blocks share the merge.
inline constexpr int kSharedWork = 16;
/// Most chunks of a shared merge for which a warp merges a whole row: it loads the sums of all of
/// them before it uses the first.
inline constexpr int kDecodeChunks = 16;
/// Most blocks that share a merge.
inline constexpr int kMostMergers = 16;

/// The counter of a slab, used by one thread for its block. It is zero before and after a launch. A
/// barrier orders the writes of the block's other threads before it: one thread's release stands
/// for all of them (PTX ISA, memory consistency model, causality order).
class SlabCounter {
 public:
  /// Most blocks of a grid.
  static constexpr int kMostBlocks = 1023;

  __device__ explicit SlabCounter(unsigned* counter) : counter_(counter) {}

  /// Counts this block among the `blocks` that have stored their chunks, where it does not share
  /// the merge. Returns whether it has to merge all chunks, which it can read then. has_more:
  /// whether it has further units. mergers(): how many other blocks share the merge, or 0.
  template <class Mergers>
  __device__ bool arrive(int blocks, bool has_more, Mergers mergers) const {
    const unsigned before = add_and_see(has_more ? 1 + kGoesOn : 1);
    if (arrived(before) != blocks - 1) return false;
    const int others = has_more ? mergers() : 0;
    if (others > 0 && before >> kGivenUpAt == 0) return false;
    if (others == 0 || leavers(before) == others) *counter_ = 0;
    return true;
  }

  /// Counts this block, which has no further units, among the `blocks`, of which `enders` have
  /// none. Returns which of the `mergers` shares of the merge it has to do, one bit for each; the
  /// chunks of all blocks can be read then.
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

  /// Ends a share of the merge. Resets the counter where nobody else looks at it any more.
  __device__ void leave(int mergers) const {
    if (leavers(before_leaving_) == mergers - 1) *counter_ = 0;
  }

 private:
  // Bits of the counter, from the lowest on: the number of blocks that have come, whether one of
  // them goes on with further slabs, the number of mergers that look at the counter no more, and a
  // bit for each share that was given up.
  static constexpr unsigned kGoesOn = kMostBlocks + 1;
  static constexpr unsigned kLeaver = 2 * kGoesOn;
  static constexpr int kGivenUpAt = 16;
  static_assert(kLeaver * kMostMergers * 2 == 1U << kGivenUpAt && kMostMergers == 16);
  /// Tries before a share is given up. One takes some 0.5 us: so they last longer than blocks of a
  /// grid are ever apart, or nearly.
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
  /// Adds without an order of memory accesses, since nothing waits for it.
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
