// Which blocks merge the chunks of a slab, where several blocks have some of them.
//
// Each block counts itself when it has left what it has found. Of few chunks the block that comes
// last merges all. Of many chunks the blocks that come last, up to kMostMergers, merge a share
// each: those that come before the very last wait until it has come.
//
// Such waiting is safe where all blocks of the grid are on the device, and nearly always they are:
//
//   - The grid has no more blocks than fit the device at once (launch_pages_few).
//   - The kernels before this one, whose blocks may still have their places, end without it. All
//     their blocks have started when the first one of this kernel does (launch.cuh).
//   - The blocks of the next kernel start when all blocks of this one have called
//     let_next_kernel_start(), so they take no place that a block of this one needs.
//
// But a kernel of another stream or process can have those places, and may wait in the same way.
// So no block waits without end: after a while it gives its share up, which one atomic operation on
// the counter decides between it and the last block, and the last block merges that share, too. A
// block that has further units gives its share up at once: others may wait for those.
#pragma once

#include <cstdint>

#include "cuda/attention/attention_pages_schedule.cuh"

namespace packhorse::cuda {

/// Chunks of a slab from which on its merge is shared.
inline constexpr int kSharedChunks = 16;
/// The most blocks that share a merge.
inline constexpr int kMostMergers = 16;

/// The counter of a slab, as the one thread has it that speaks for its block. It is zero before and
/// after a launch.
class SlabCounter {
 public:
  /// The most blocks that may have chunks of a slab whose merge is shared.
  static constexpr int kMostBlocks = 2047;

  __device__ explicit SlabCounter(unsigned* counter) : counter_(counter) {}

  /// Counts this block among the `blocks` that have left what they have found. Returns which of the
  /// `mergers` shares of the merge it has to do, one bit for each; all that the blocks have found
  /// can be seen then. The block's other threads' writes come before by way of a barrier: one
  /// thread's release stands for all of them (PTX ISA, memory consistency model, causality order).
  __device__ unsigned arrive(int blocks, int mergers, bool has_more) {
    const unsigned before = add_and_see(1);
    if (mergers == 1) {
      const bool last = before == static_cast<unsigned>(blocks - 1);
      if (last) *counter_ = 0;
      return last ? 1 : 0;
    }
    const int place = arrived(before) - (blocks - mergers);
    if (place < 0) return 0;
    const unsigned share = 1U << place;
    if (place == mergers - 1) {
      before_leaving_ = add(kLeaver);
      return share | before >> kGivenUpAt;
    }
    for (int tries = has_more ? 0 : kTries; tries > 0; --tries) {
      if (arrived(look()) < blocks) continue;
      before_leaving_ = add(kLeaver);
      return share;
    }
    before_leaving_ = add_and_see(kLeaver + (share << kGivenUpAt));
    return arrived(before_leaving_) == blocks ? share : 0;  // otherwise the last block does it
  }

  /// After a share of several has been merged. Resets the counter where nobody else looks at it any
  /// more.
  __device__ void leave(int mergers) {
    const unsigned others = before_leaving_ / kLeaver % (kMostMergers * 2);
    if (others == static_cast<unsigned>(mergers - 1)) *counter_ = 0;
  }

 private:
  // From the lowest bit on: blocks that have come, mergers that look at the counter no more, and a
  // bit for each share that was given up.
  static constexpr unsigned kLeaver = kMostBlocks + 1;
  static constexpr int kGivenUpAt = 16;
  static_assert(kLeaver * kMostMergers * 2 == 1U << kGivenUpAt && kMostMergers == 16);
  /// A try takes some 0.7 us: so this is longer than blocks of a grid are ever apart, or nearly.
  static constexpr int kTries = 100;

  __device__ static int arrived(unsigned count) { return static_cast<int>(count % kLeaver); }
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
  /// Nothing waits for it.
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
