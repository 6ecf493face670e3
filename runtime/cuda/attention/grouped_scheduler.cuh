// Which tile of which problem a block of a persistent grid works on next, where every sequence is a
// group of problems of its own size and only the device knows the sizes.
//
// ByteTransformer (arXiv 2210.03052) section III-D.2: finding the problem of a tile means a prefix
// sum over the problems, so a warp does it for the block's next 32 tiles at once, one per lane,
// instead of one thread for one tile.
#pragma once

#include "cuda/rows/reduce.cuh"

namespace packhorse::cuda {

struct GroupedTile {
  int32_t sequence;  // negative: no more work
  int32_t tile;      // of this sequence
};

/// Block b of n works on tiles b, b + n, b + 2n, ... of all sequences' tiles in order.
class GroupedScheduler {
 public:
  /// Called by every thread of the block, at the same time; `queue` is shared. `tiles_of(b)`: tiles
  /// of sequence b, 0 for one that is not of this kernel.
  template <class TilesOf>
  __device__ GroupedTile next(GroupedTile (&queue)[32], int sequences, TilesOf tiles_of) {
    if (taken_ % 32 == 0) {
      __syncthreads();  // nobody reads the old queue any more
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
      // Lanes whose tile lies in these 32 sequences find it by halving; the others' steps are idle.
      const int wanted = mine - before_;
      int at = 0;
#pragma unroll
      for (int step = 16; step > 0; step /= 2) {
        if (__shfl_sync(kFullWarp, ends, at + step - 1) <= wanted) at += step;
      }
      const int end = __shfl_sync(kFullWarp, ends, at);
      const int begin = end - __shfl_sync(kFullWarp, tiles, at);
      if (found.sequence < 0 && wanted < end) found = {first_ + at, wanted - begin};
      if (__all_sync(kFullWarp, found.sequence >= 0)) break;  // the next 32 may lie here too
      before_ += __shfl_sync(kFullWarp, ends, 31);
    }
    queue[lane] = found;
  }

  unsigned taken_ = 0;
  int first_ = 0;   // first of the 32 sequences under examination
  int before_ = 0;  // tiles of the sequences before it
};

}  // namespace packhorse::cuda
