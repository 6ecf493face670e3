// One Hopper GEMM. A producer warp copies boxes of both operands through a ring of stages in shared
// memory by TMA (the Tensor Memory Accelerator); two consumer warpgroups multiply them by wgmma and
// finish tiles of the output. The grid is persistent, with at most one block per SM.
//
// In ping-pong kernels each warpgroup has tiles of its own: one multiplies while the other applies
// bias, activation and residual. In cooperative kernels both split one tile, which halves the
// epilogue at the end of a launch that has one tile per SM. Either way the sum over k is formed in
// order, 32 bytes at a time.
//
// Each warpgroup has a buffer in shared memory for its whole tile. TMA copies the residual into it
// during the main loop, the epilogue works in place (ldmatrix, stmatrix), and TMA stores the result
// from it, so that nothing inside a tile has to wait. Each warp handles its own boxes of 16 rows
// and synchronises with no other.
#pragma once

#include <cutlass/arch/barrier.h>
#include <cutlass/arch/reg_reconfig.h>

#include <cute/arch/cluster_sm90.hpp>
#include <cute/arch/copy_sm90_tma.hpp>

#include "core/math.h"
#include "cuda/gemm/sm90/consumer.cuh"

namespace packhorse::cuda {

namespace sm90_gemm {

/// Runs the producer: one lane issues all copies of this block's tiles, stage by stage, as
/// consumers free the stages.
template <class Traits>
__device__ void produce(const GemmArgsSm90& args, typename Traits::SharedStorage& smem) {
  using Element = typename Traits::Element;
  constexpr int kBox = Traits::kBox;
  constexpr int kBlock = kBox * Traits::kBoxes;  // elements of k in a stage
  const int blocks_k = ceil_div(args.k, kBlock);
  auto load_box = [&](const CUtensorMap& map, Element* to, int stage, int k, int row) {
    constexpr auto kHint = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
    cute::SM90_TMA_LOAD_2D::copy(&map, &smem.full[stage], kHint, to, k, row);
  };
  // This block's share of a stage's weight, which goes to all blocks of the cluster.
  constexpr int kShare = Traits::kTileN / Traits::kCluster;
  const int share = kShare * (static_cast<int>(blockIdx.x) % Traits::kCluster);
  auto load_weight = [&](int stage, int block_k, int tile_n) {
    for (int box = 0; box < Traits::kBoxes; ++box) {
      Element* const to = smem.b[stage][box] + share * kBox;
      const int k = block_k * kBlock + kBox * box;
      if constexpr (Traits::kCluster > 1) {
        cute::SM90_TMA_LOAD_MULTICAST_2D::copy(
            &args.weight, &smem.full[stage], uint16_t{(1 << Traits::kCluster) - 1},
            static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL), to, k,
            tile_n * Traits::kTileN + share);
      } else {
        load_box(args.weight, to, stage, k, tile_n * Traits::kTileN);
      }
    }
  };
  // Rows from the row count on are not copied. Their shared memory holds arbitrary values, whose
  // products are stored, if at all, in rows of the output that nobody reads.
  auto load_rows = [&](int stage, int block_k, int tile_m, int copied) {
    const bool whole = copied == Traits::kTileM;
    for (int box = 0; box < Traits::kBoxes; ++box) {
      for (int i = 0; i < copied; i += whole ? Traits::kTileM : sm90::kPartRows) {
        load_box(whole ? args.a.whole : args.a.part, smem.a[stage][box] + kBox * i, stage,
                 block_k * kBlock + kBox * box, tile_m * Traits::kTileM + i);
      }
    }
  };

  // Loads the row count. With one panel its latency overlaps with issuing the copies of the weight.
  const int rows = exact_rows(args);
  const Schedule<Traits> schedule(args, rows);
  int index = Schedule<Traits>::first();
  Tile tile = schedule(index);
  const int ahead = min(blocks_k, Traits::kStages);
  // The weight does not depend on the kernel before, so the stages are filled with it while that
  // kernel finishes. Where the L2 cache has room for the whole weight, the rest is prefetched into
  // the cache, a share by each block of a tile column.
  for (int i = 0; i < ahead; ++i) {
    TxBarrier::expect_transaction(&smem.full[i], Traits::kWeightBytes);
    load_weight(i, i, tile.n);
  }
  const int most_tiles_m = ceil_div(args.rows, Traits::kTileM);
  constexpr int64_t kSize = sizeof(Element);
  const bool fits = kSize * int64_t{args.n} * args.k <= kResidentWeightBytes;
  for (int i = ahead + tile.m; fits && i < blocks_k; i += most_tiles_m) {
    for (int box = 0; box < Traits::kBoxes; ++box) {
      cute::SM90_TMA_LOAD_2D::PREFETCH::copy(&args.weight, i * kBlock + kBox * box,
                                             tile.n * Traits::kTileN);
    }
  }
  auto rows_to_copy = [&] {
    return sm90::copied_rows(max(0, rows - tile.m * Traits::kTileM), Traits::kTileM);
  };
  // Everything that can be computed ahead is computed before the wait, since code after the wait
  // adds to the time of every layer.
  int copied = rows_to_copy();
  const bool has_tile = schedule.has(index);
  wait_for_previous_kernel();
  if (Traits::kNextEarly) let_next_kernel_start();
  for (int i = 0; i < ahead; ++i) {
    TxBarrier::arrive_and_expect_tx(&smem.full[i], copied * Traits::kRowBytes);
    load_rows(i, i, tile.m, copied);
  }
  if (!has_tile) {  // shared memory must stay until the copies into it are done
    for (int i = 0; i < ahead; ++i) Barrier::wait(&smem.full[i], 0);
    return;
  }

  Ring<Traits::kStages> ring;
  ring.advance(ahead);
  int block_k = ahead;
  for (;;) {
    for (; block_k < blocks_k; ++block_k) {
      Barrier::wait(&smem.empty[ring.index], ring.phase ^ 1);
      TxBarrier::arrive_and_expect_tx(&smem.full[ring.index],
                                      copied * Traits::kRowBytes + Traits::kWeightBytes);
      load_rows(ring.index, block_k, tile.m, copied);
      load_weight(ring.index, block_k, tile.n);
      ring.advance();
    }
    index += Schedule<Traits>::step();
    if (!schedule.has(index)) {
      if (!Traits::kNextEarly) let_next_kernel_start();
      return;
    }
    tile = schedule(index);
    copied = rows_to_copy();
    block_k = 0;
  }
}

}  // namespace sm90_gemm

/// The kernel: warpgroups 0 and 1 are consumers, and the first warp of the third is the producer.
template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1)
    gemm_sm90_kernel(const __grid_constant__ GemmArgsSm90 args) {
  extern __shared__ __align__(1024) char shared[];
  auto& smem = *reinterpret_cast<typename Traits::SharedStorage*>(shared);
  using namespace sm90_gemm;
  if (threadIdx.x == 0) {
    for (int i = 0; i < Traits::kStages; ++i) {
      TxBarrier::init(&smem.full[i], 1);
      // Arrivals of the warps that read a stage, in all blocks of the cluster.
      Barrier::init(&smem.empty[i], (Traits::kPingPong ? 4 : 8) * Traits::kCluster);
    }
    for (uint64_t& barrier : smem.residual) TxBarrier::init(&barrier, 1);
    cutlass::arch::fence_barrier_init();
  }
  if (threadIdx.x == 32) {
    cute::prefetch_tma_descriptor(&args.a.whole);
    cute::prefetch_tma_descriptor(&args.a.part);
    cute::prefetch_tma_descriptor(&args.weight);
    if (!Traits::kPooled) cute::prefetch_tma_descriptor(&args.out);
    if (Traits::kResidual) cute::prefetch_tma_descriptor(&args.residual);
  }
  if constexpr (Traits::kCluster > 1) {
    cute::cluster_sync();
  } else {
    __syncthreads();
  }
  if (uniform(threadIdx.x / 128) == 2) {
    if (Traits::kMoveRegisters) cutlass::arch::warpgroup_reg_dealloc<40>();
    if (threadIdx.x < 256 + 32 && cute::elect_one_sync()) produce<Traits>(args, smem);
  } else {
    if (Traits::kMoveRegisters) cutlass::arch::warpgroup_reg_alloc<232>();
    Consumer<Traits>(args, smem).run();
  }
  // Another block of the cluster may still write to this one's shared memory or arrive at its
  // barriers.
  if constexpr (Traits::kCluster > 1) {
    __syncwarp();
    cute::cluster_sync();
  }
}

}  // namespace packhorse::cuda
