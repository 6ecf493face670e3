// What the producer and the consumers of Hopper kernels share: barriers, places in rings of stages.
#pragma once

#include <cuda.h>
#include <cutlass/arch/barrier.h>

#include <cstdint>

namespace packhorse::cuda::sm90 {

using Barrier = cutlass::arch::ClusterBarrier;
using TxBarrier = cutlass::arch::ClusterTransactionBarrier;

/// A stage of a ring, and the parity of its current use.
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

/// The same rows in boxes of a whole tile and in small ones, for tiles that are not full: rows that
/// the copy engine finds beyond the end, and fills with zeros, cost it more than rows that are
/// there.
struct TileMap {
  CUtensorMap whole, part;
};
constexpr int kPartRows = 16;

/// How many rows of a tile are copied where `left` are there. The rest of its shared memory keeps
/// what it holds.
__device__ inline int32_t copied_rows(int32_t left, int32_t rows) {
  return left >= rows ? rows : (left + kPartRows - 1) / kPartRows * kPartRows;
}

/// A value that all lanes hold alike, in a form that the compiler knows to be so: what depends on
/// it (loop counters, stages, wgmma descriptors) then stays in uniform registers.
__device__ inline int32_t uniform(int32_t value) { return __shfl_sync(~0u, value, 0); }

}  // namespace packhorse::cuda::sm90
