// One Hopper GEMM: a producer warp streams both operands through shared memory by TMA, two consumer
// warpgroups multiply (wgmma) and finish tiles of the output.
//
// Ping-pong kernels give each warpgroup tiles of its own: one multiplies while the other applies
// bias, activation and residual. Cooperative kernels split one tile: half the epilogue at the end
// of a launch that has one tile per multiprocessor. Either way k is summed in order, 16 at a time.
//
// A warpgroup has a shared buffer for its whole tile. The residual comes into it by TMA during the
// mainloop, the epilogue works in place (ldmatrix, stmatrix) and TMA takes the result away, so that
// nothing inside a tile waits; each warp handles its own 16-row boxes and synchronises with none.
#pragma once

#include <cutlass/arch/barrier.h>
#include <cutlass/arch/reg_reconfig.h>

#include <cute/arch/copy_sm90_tma.hpp>

#include "cuda/gemm/gemm_sm90_consumer.cuh"

namespace packhorse::cuda {

namespace sm90_gemm {

template <class Traits>
__device__ void produce(const GemmArgsSm90& args, typename Traits::SharedStorage& smem) {
  using Element = typename Traits::Element;
  constexpr int kBlock = 64 * Traits::kBoxes;  // k of a stage
  const int blocks_k = (args.k + kBlock - 1) / kBlock;
  auto load_box = [&](const CUtensorMap& map, Element* to, int stage, int k, int row) {
    constexpr auto kHint = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
    cute::SM90_TMA_LOAD_2D::copy(&map, &smem.full[stage], kHint, to, k, row);
  };
  auto load_weight = [&](int stage, int block_k, int tile_n) {
    for (int box = 0; box < Traits::kBoxes; ++box) {
      load_box(args.weight, smem.b[stage][box], stage, block_k * kBlock + 64 * box,
               tile_n * Traits::kTileN);
    }
  };
  // Rows beyond the last are not copied. Products of what is there instead are stored, if at all,
  // in rows from the row count on, which nobody reads.
  auto load_rows = [&](int stage, int block_k, int tile_m, int copied) {
    const bool whole = copied == Traits::kTileM;
    for (int box = 0; box < Traits::kBoxes; ++box) {
      for (int i = 0; i < copied; i += whole ? Traits::kTileM : sm90::kPartRows) {
        load_box(whole ? args.a.whole : args.a.part, smem.a[stage][box] + 64 * i, stage,
                 block_k * kBlock + 64 * box, tile_m * Traits::kTileM + i);
      }
    }
  };

  const int rows = exact_rows(args);  // in one panel, on its way while the weights are asked for
  const Schedule<Traits> schedule(args, rows);
  int index = blockIdx.x;
  Tile tile = schedule(index);
  const int ahead = min(blocks_k, Traits::kStages);
  // The weight does not depend on the kernel before: what the stages hold of it comes while that
  // kernel finishes, and the rest goes to L2 where that has room for all of it, each block of a
  // tile column asking for a share.
  for (int i = 0; i < ahead; ++i) {
    TxBarrier::expect_transaction(&smem.full[i], Traits::kWeightBytes);
    load_weight(i, i, tile.n);
  }
  const int most_tiles_m = (args.rows + Traits::kTileM - 1) / Traits::kTileM;
  const bool fits = 2 * int64_t{args.n} * args.k <= kResidentWeightBytes;
  for (int i = ahead + tile.m; fits && i < blocks_k; i += most_tiles_m) {
    for (int box = 0; box < Traits::kBoxes; ++box) {
      cute::SM90_TMA_LOAD_2D::PREFETCH::copy(&args.weight, i * kBlock + 64 * box,
                                             tile.n * Traits::kTileN);
    }
  }
  auto rows_to_copy = [&] {
    return sm90::copied_rows(max(0, rows - tile.m * Traits::kTileM), Traits::kTileM);
  };
  // All that can be known is known before the wait: what follows it is on every layer's way.
  int copied = rows_to_copy();
  const bool has_tile = schedule.has(index);
  wait_for_previous_kernel();
  if (Traits::kNextEarly) let_next_kernel_start();
  for (int i = 0; i < ahead; ++i) {
    TxBarrier::arrive_and_expect_tx(&smem.full[i], copied * Traits::kRowBytes);
    load_rows(i, i, tile.m, copied);
  }
  if (!has_tile) {  // shared memory must outlive the copies into it
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
    index += gridDim.x;
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

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1)
    gemm_sm90_kernel(const __grid_constant__ GemmArgsSm90 args) {
  extern __shared__ __align__(1024) char shared[];
  auto& smem = *reinterpret_cast<typename Traits::SharedStorage*>(shared);
  using namespace sm90_gemm;
  if (threadIdx.x == 0) {
    for (int i = 0; i < Traits::kStages; ++i) {
      TxBarrier::init(&smem.full[i], 1);
      Barrier::init(&smem.empty[i], Traits::kPingPong ? 4 : 8);  // warps that read a stage
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
  __syncthreads();
  if (uniform(threadIdx.x / 128) == 2) {
    if (Traits::kMoveRegisters) cutlass::arch::warpgroup_reg_dealloc<40>();
    if (threadIdx.x < 256 + 32 && cute::elect_one_sync()) produce<Traits>(args, smem);
  } else {
    if (Traits::kMoveRegisters) cutlass::arch::warpgroup_reg_alloc<232>();
    Consumer<Traits>(args, smem).run();
  }
}

}  // namespace packhorse::cuda
