// Scheduler of a grouped GEMM on a persistent grid: gives a block its next tile. Every sequence is
// a group of problems of its own size, and only the device knows the sizes.
//
// Finding the problem of a tile takes a prefix sum over the problems. As in ByteTransformer (arXiv
// 2210.03052, section III-D.2), a whole warp finds the block's next 32 tiles at once, one per lane.
#pragma once

#include "cuda/common/reduce.cuh"

namespace packhorse::cuda {

struct GroupedTile {
  int32_t sequence;  // negative: there is no more work
  int32_t tile;      // index among the tiles of this sequence
};

/// Block b of n gets the tiles b, b + n, b + 2n, ... of all sequences in order.
class GroupedScheduler {
 public:
  /// Returns the block's next tile. All threads of the block call it together. `queue` is in shared
  /// memory. `tiles_of(b)` returns the number of tiles of sequence b, and 0 for a sequence that is
  /// not for this kernel.
  template <class TilesOf>
  __device__ GroupedTile next(GroupedTile (&queue)[32], int sequences, TilesOf tiles_of) {
    if (taken_ % 32 == 0) {
      __syncthreads();  // all threads have read the old queue
      if (threadIdx.x < 32) refill(queue, sequences, tiles_of);
      __syncthreads();
    }
    return queue[taken_++ % 32];
  }

 private:
  template <class TilesOf>
  __device__ void refill(GroupedTile (&queue)[32], int sequences, TilesOf tiles_of) {
    const int lane = static_cast<int>(threadIdx.x);
    const int mine = static_cast<int>(blockIdx.x + (taken_ + lane) * gridDim.x);
    GroupedTile found = {-1, 0};
    for (; first_ < sequences; first_ += 32) {
      const int tiles = first_ + lane < sequences ? tiles_of(first_ + lane) : 0;
      int ends = tiles;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int below = __shfl_up_sync(kFullWarp, ends, step);
        if (lane >= step) ends += below;
      }
      // A lane whose tile lies in these 32 sequences finds it by binary search in the running sums.
      // The other lanes take part in its shuffles and ignore the result.
      const int wanted = mine - before_;
      int at = 0;
#pragma unroll
      for (int step = 16; step > 0; step /= 2) {
        if (__shfl_sync(kFullWarp, ends, at + step - 1) <= wanted) at += step;
      }
      const int end = __shfl_sync(kFullWarp, ends, at);
      const int begin = end - __shfl_sync(kFullWarp, tiles, at);
      if (found.sequence < 0 && wanted < end) found = {first_ + at, wanted - begin};
      // The next refill starts at these 32 sequences again.
      if (__all_sync(kFullWarp, found.sequence >= 0)) break;
      before_ += __shfl_sync(kFullWarp, ends, 31);
    }
    queue[lane] = found;
  }

  unsigned taken_ = 0;
  int first_ = 0;   // first of the 32 sequences that the warp searches
  int before_ = 0;  // tiles of all sequences before first_
};

}  // namespace packhorse::cuda
