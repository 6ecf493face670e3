// Pipeline between the producer and the consumers of Hopper kernels. A producer copies tiles from
// global to shared memory by TMA (the Tensor Memory Accelerator) and consumers multiply them. The
// tiles lie in a ring of stages; each stage has a barrier `full`, on which consumers wait for the
// copy, and a barrier `empty`, on which the producer waits for its last reader (PTX ISA, mbarrier).
#pragma once

#include <cuda.h>
#include <cutlass/arch/barrier.h>

#include <cstdint>

#include "core/math.h"

namespace packhorse::cuda::sm90 {

using Barrier = cutlass::arch::ClusterBarrier;
using TxBarrier = cutlass::arch::ClusterTransactionBarrier;

/// A place in a ring: the index of a stage, and the parity of the barrier phase that its current
/// use waits for.
template <int stages>
struct Ring {
  int index = 0;
  uint32_t phase = 0;
  __device__ void advance() {
    if (++index == stages) {
      index = 0;
      phase ^= 1;
    }
  }
  __device__ void advance(int32_t count) {
    const int32_t to = index + count;
    index = to % stages;
    phase ^= to / stages % 2;
  }
};

/// Two tensor maps of the same rows, with boxes of a whole tile and with boxes of kPartRows rows.
/// The small boxes are for tiles that are not full, because TMA takes longer for rows past the end,
/// which it fills with zeros, than for rows that exist.
struct TileMap {
  CUtensorMap whole, part;
};
constexpr int kPartRows = 16;

/// Returns how many of a tile's `rows` rows are copied where `left` rows exist. The rest of the
/// tile keeps what it holds in shared memory.
__device__ inline int32_t copied_rows(int32_t left, int32_t rows) {
  return left >= rows ? rows : round_up(left, kPartRows);
}

/// Returns a value that is the same in all lanes, in a form from which the compiler knows that.
/// What depends on it (loop counters, stages, wgmma descriptors) then stays in uniform registers.
__device__ inline int32_t uniform(int32_t value) { return __shfl_sync(~0u, value, 0); }

}  // namespace packhorse::cuda::sm90
