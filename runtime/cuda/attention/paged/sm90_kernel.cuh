// Attention over pages for rows of many queries, on Hopper: the same bits as
// paged_attention_kernel, by wgmma and TMA (the Tensor Memory Accelerator).
//
// The grid is persistent: a block takes slabs of rows from a list until none is left. Its producer
// warp copies the slab's queries, and tile by tile the keys and values that its rows see, through
// rings of stages with mbarriers; a tile is one page of one head. Every consumer warpgroup owns 64
// rows. The softmax of one warpgroup overlaps with the products of another.
//
// A slab begins with a whole token, so that one copy brings the queries of its heads and tokens in
// the order of its rows: row r is token r / group and head r % group. Where the group does not
// divide a block's rows, the last of them are left empty.
#pragma once

#include <cutlass/arch/reg_reconfig.h>

#include "core/math.h"
#include "cuda/attention/paged/sm90_consumer.cuh"

namespace packhorse::cuda {

namespace sm90 {

/// Copies a slab's queries, keys and values. Called by the whole producer warp, whose first lane
/// issues the copies.
template <class Traits>
__device__ void copy_slab(const PagesSm90Params& params, typename Traits::Shared& smem,
                          const PagedSlab& slab, Ring<Traits::kQueryStages>& query,
                          Ring<Traits::kStages>& stage) {
  using T = typename Traits::T;
  constexpr auto kHint = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
  constexpr int kKeys = Traits::kKeys;
  const AttentionArgs& args = params.args;
  const bool leader = threadIdx.x % 32 == 0;
  if (leader) {
    Barrier::wait(&smem.queries_empty[query.index], query.phase ^ 1);
    smem.slabs[query.index] = slab;
    uint64_t* const full = &smem.queries_full[query.index];
    const int rows = params.slab_tokens * params.group;
    TxBarrier::arrive_and_expect_tx(full, rows * Traits::kDim * sizeof(T));
    for (int box = 0; box < Traits::kBoxes; ++box) {
      cute::SM90_TMA_LOAD_3D::copy(
          &params.query_map, full, kHint, smem.queries[query.index] + box * Traits::kRows * 64,
          box * 64, slab.kv_head * params.group, slab.q_begin + params.token_of(slab.row));
    }
  }
  query.advance();

  const SlabTiles tiles(params, slab, slab.row, SlabItems{params}.row_end(slab) - 1, kKeys);
  PageNumbers pages(
      args.pages.table + static_cast<int64_t>(slab.sequence) * args.pages.table_stride,
      ceil_div(slab.kv_length, kKeys));
#pragma unroll 1
  for (int tile = tiles.begin; tile < tiles.end; ++tile) {
    const int head = pages[tile] * args.num_kv_heads + slab.kv_head;
    if (leader) {
      const auto copy = [&](uint64_t* full, uint64_t* empty, T* to, auto issue) {
        Barrier::wait(&empty[stage.index], stage.phase ^ 1);
        TxBarrier::arrive_and_expect_tx(&full[stage.index], Traits::kTile * sizeof(T));
        for (int box = 0; box < Traits::kBoxes; ++box) {
          issue(&full[stage.index], to + box * kKeys * 64, box * 64);
        }
      };
      copy(smem.keys_full, smem.keys_empty, smem.keys[stage.index],
           [&](uint64_t* full, T* to, int column) {
             cute::SM90_TMA_LOAD_2D::copy(&params.key_map, full, kHint, to, column, head * kKeys);
           });
      const PageValues from(min(kKeys, slab.kv_length - tile * kKeys));
      copy(smem.values_full, smem.values_empty, smem.values[stage.index],
           [&](uint64_t* full, T* to, int column) {
             cute::SM90_TMA_LOAD_4D::copy(&params.value_map, full, kHint, to, column, from.x,
                                          from.y, head);
           });
    }
    stage.advance();
  }
}

/// Runs the producer warp. The next item is read from a counter in global memory that all blocks
/// share.
template <class Traits>
__device__ void produce_pages(const PagesSm90Params& params, typename Traits::Shared& smem) {
  const SlabItems items{params};
  const bool leader = threadIdx.x % 32 == 0;
  const int count = items.count();
  Ring<Traits::kQueryStages> query;
  Ring<Traits::kStages> stage;
  // The counter is not needed where every item has a block of its own.
  const bool counted = count > static_cast<int>(gridDim.x);
  int item = static_cast<int>(blockIdx.x);
  PagedSlab slab{};
  bool found = item < count && items.find(item, slab);
  // Code above reads only the batch's offsets. The consumers need no wait of their own: all that
  // they read comes from copies that are issued below.
  wait_for_previous_kernel();
  let_next_kernel_start();
  while (item < count) {
    // The atomic is issued before this slab's copies and its result is used after them, which hides
    // its latency.
    unsigned taken = 0;
    if (leader && counted) taken = atomicAdd(params.counters, 1U);
    if (found) copy_slab<Traits>(params, smem, slab, query, stage);
    __syncwarp();
    if (!counted) break;
    // A number is taken for each item, so count - 1 is the last one of this launch, and its taker
    // leaves the counter at zero.
    if (leader && taken == static_cast<unsigned>(count) - 1) *params.counters = 0;
    item = static_cast<int>(gridDim.x + __shfl_sync(kFullWarp, taken, 0));
    found = item < count && items.find(item, slab);
  }
  if (leader) {
    Barrier::wait(&smem.queries_empty[query.index], query.phase ^ 1);
    smem.slabs[query.index].rows = 0;
    Barrier::arrive(&smem.queries_full[query.index]);
  }
}

}  // namespace sm90

/// The first kConsumers warpgroups are consumers, and the first warp after them is the producer.
template <class T, int kDim, bool kRare>
__global__ void __launch_bounds__(PagesSm90Traits<T, kDim, kRare>::kThreads, 1)
    paged_attention_sm90_kernel(const __grid_constant__ PagesSm90Params params) {
  using Traits = PagesSm90Traits<T, kDim, kRare>;
  extern __shared__ __align__(1024) unsigned char pages_sm90_shared[];
  auto& smem = *reinterpret_cast<typename Traits::Shared*>(pages_sm90_shared);
  constexpr int kProducer = 128 * Traits::kConsumers;  // the first thread of the producer
  if (threadIdx.x == 0) {
    for (int i = 0; i < Traits::kQueryStages; ++i) {
      sm90::Barrier::init(&smem.queries_full[i], 1);
      sm90::Barrier::init(&smem.queries_empty[i], kProducer);
    }
    for (int i = 0; i < Traits::kStages; ++i) {
      sm90::Barrier::init(&smem.keys_full[i], 1);
      sm90::Barrier::init(&smem.keys_empty[i], 4 * Traits::kConsumers);
      sm90::Barrier::init(&smem.values_full[i], 1);
      sm90::Barrier::init(&smem.values_empty[i], 4 * Traits::kConsumers);
    }
    cutlass::arch::fence_barrier_init();
    for (const CUtensorMap* map : {&params.query_map, &params.key_map, &params.value_map}) {
      cute::prefetch_tma_descriptor(map);
    }
  }
  __syncthreads();
  if (threadIdx.x >= kProducer) {
    cutlass::arch::warpgroup_reg_dealloc<Traits::kProducerRegisters>();
    if (threadIdx.x < kProducer + 32) sm90::produce_pages<Traits>(params, smem);
  } else {
    cutlass::arch::warpgroup_reg_alloc<Traits::kConsumerRegisters>();
    PagesSm90Consumer<Traits>(params, smem).run();
  }
}

}  // namespace packhorse::cuda
