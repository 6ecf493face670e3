// Fused variable-length attention for Hopper: the design of FlashAttention-3 (arXiv 2407.08608,
// sections 3.1 and 3.2) over packed sequences. A persistent grid takes (sequence, head, query tile)
// units from a list; a producer warp streams Q, K and V through shared memory by TMA; every
// consumer warpgroup owns 64 query rows, keeps its probabilities in registers as the A operand of
// the second wgmma and, where registers allow, computes the next scores while the previous values
// are summed.
//
// Packed boundaries cost nothing: the tensor maps are "ragged". A row is addressed by two
// coordinates, x = kRaggedRows - length + row and y = begin + length, both of one row stride, with
// a third whose stride takes kRaggedRows back (addresses wrap at 2^64). x reaches the map's extent
// exactly at the sequence's end, so the copy engine reads zeros beyond it and writes nothing there:
// a neighbour's NaN never enters, and no store needs a predicate.
#pragma once

#include <cutlass/arch/barrier.h>
#include <cutlass/arch/reg_reconfig.h>

#include <cute/arch/copy_sm90_tma.hpp>

#include "cuda/attention/attention_sm90_consumer.cuh"
#include "cuda/attention/attention_sm90_traits.cuh"
#include "cuda/launch.cuh"

namespace packhorse::cuda {

namespace sm90 {

/// The first `copied` of `rows` rows.
template <class Traits>
__device__ void load_tile(const TileMap& map, uint64_t* full, typename Traits::Element* smem,
                          int rows, int32_t copied, int32_t head, RaggedRow row) {
  const bool whole = copied == rows;
  for (int box = 0; box < Traits::kBoxes; ++box) {
    for (int32_t i = 0; i < copied; i += whole ? rows : kPartRows) {
      cute::SM90_TMA_LOAD_5D::copy(whole ? &map.whole : &map.part, full,
                                   static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL),
                                   smem + (box * rows + i) * Traits::kBoxColumns,
                                   box * Traits::kBoxColumns, head, row.x + i, row.y,
                                   int32_t{kRaggedRows});
    }
  }
}

template <class Traits>
__device__ void produce(const AttentionArgsSm90& args, typename Traits::SharedStorage& smem) {
  constexpr int kRows = Traits::kTileRows;
  constexpr uint32_t kRowBytes = sizeof(smem.k[0]) / Traits::kKvTile;
  const bool first_lane = threadIdx.x % 32 == 0;
  Ring<Traits::kQStages> q;
  Ring<Traits::kKvStages> kv;
  const int32_t total = smem.tiles.num_tiles();
  // No block takes a second tile where every tile has a block.
  int32_t* const next_tile = total <= static_cast<int32_t>(gridDim.x) ? nullptr : args.next_tile;
  int32_t index = blockIdx.x;
  QueryTile tile;
  if (index < total) tile = smem.tiles.find(index, args.batch, kRows, args.descending);
  // Up to here only the batch's offsets were read, which no kernel writes that may still run. All
  // that consumers do follows from loads issued below.
  wait_for_previous_kernel();
  let_next_kernel_start();
  while (index < total) {
    int32_t taken = 0;  // looked at after this tile's loads: the counter is a long way off
    if (first_lane && next_tile != nullptr) taken = atomicAdd(next_tile, 1);
    const KeyTiles keys(tile, args.window, kRows, Traits::kKvTile);
    if (cute::elect_one_sync()) {
      const Sequence& s = tile.sequence;
      const int groups = min(Traits::kConsumers, (s.q_length - tile.row + 63) / 64);

      Barrier::wait(&smem.q_empty[q.index], q.phase ^ 1);
      smem.tile[q.index] = tile;
      if (keys.count() == 0) {
        Barrier::arrive(&smem.q_full[q.index]);
      } else {
        const int32_t left = s.q_length - tile.row;
        TxBarrier::arrive_and_expect_tx(&smem.q_full[q.index],
                                        copied_rows(left, 64 * groups) * kRowBytes);
        for (int g = 0; g < groups; ++g) {
          load_tile<Traits>(args.q, &smem.q_full[q.index], smem.q[q.index][g], 64,
                            copied_rows(left - 64 * g, 64), tile.head,
                            RaggedRow(s.q_begin, s.q_length, tile.row + 64 * g));
        }
      }

      const int32_t kv_head = tile.head / args.q_heads_per_kv_head;
      const auto load_keys = [&](const TileMap& map, uint64_t* full, uint64_t* empty, auto& to,
                                 Ring<Traits::kKvStages>& stage, int32_t t, bool all) {
        const int32_t first = t * Traits::kKvTile;
        const int32_t copied =
            all ? Traits::kKvTile : copied_rows(s.k_length - first, Traits::kKvTile);
        Barrier::wait(&empty[stage.index], stage.phase ^ 1);
        TxBarrier::arrive_and_expect_tx(&full[stage.index], copied * kRowBytes);
        load_tile<Traits>(map, &full[stage.index], to[stage.index], Traits::kKvTile, copied,
                          kv_head, RaggedRow(s.k_begin, s.k_length, first));
        stage.advance();
      };
      // The consumers read K0, K1, V0, K2, V1, ..., so this is the order of the loads. What K holds
      // beyond the sequence is masked; V is zero there if overlapped consumers multiply by it.
      Ring<Traits::kKvStages> k = kv, v = kv;
      for (int32_t t = keys.end; t >= keys.begin; --t) {
        if (t > keys.begin) load_keys(args.k, smem.k_full, smem.k_empty, smem.k, k, t - 1, false);
        if (t < keys.end) {
          load_keys(args.v, smem.v_full, smem.v_empty, smem.v, v, t, Traits::kOverlap);
        }
      }
    }
    __syncwarp();
    q.advance();
    kv.advance(keys.count());
    if (next_tile == nullptr) {
      index += gridDim.x;
    } else {
      // Every block takes until nothing is left, so this is the launch's last take.
      if (first_lane && taken == total - 1) *next_tile = 0;
      index = gridDim.x + __shfl_sync(~0u, taken, 0);
    }
    if (index < total) tile = smem.tiles.find(index, args.batch, kRows, args.descending);
  }
  if (cute::elect_one_sync()) {
    Barrier::wait(&smem.q_empty[q.index], q.phase ^ 1);
    smem.tile[q.index].head = -1;
    Barrier::arrive(&smem.q_full[q.index]);
  }
}

}  // namespace sm90

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kBlocksPerSm)
    attention_sm90_kernel(const __grid_constant__ AttentionArgsSm90 args) {
  extern __shared__ __align__(1024) uint8_t raw_smem[];
  auto& smem = *reinterpret_cast<typename Traits::SharedStorage*>(raw_smem);
  constexpr int kProducer = 128 * Traits::kConsumers;  // its first thread
  const bool produces = threadIdx.x >= kProducer && threadIdx.x < kProducer + 32;
  // The producer's share of a short batch, asked for together with the batch's size.
  Sequence mine{};
  const int lane = threadIdx.x % 32;
  if (produces && lane < args.batch.num_sequences) mine = args.batch.sequence(lane);
  if (threadIdx.x == 0) {
    for (int i = 0; i < Traits::kQStages; ++i) {
      sm90::Barrier::init(&smem.q_full[i], 1);
      sm90::Barrier::init(&smem.q_empty[i], 128 * Traits::kConsumers);
    }
    for (int i = 0; i < Traits::kKvStages; ++i) {
      sm90::Barrier::init(&smem.k_full[i], 1);
      sm90::Barrier::init(&smem.k_empty[i], 4 * Traits::kConsumers);
      sm90::Barrier::init(&smem.v_full[i], 1);
      sm90::Barrier::init(&smem.v_empty[i], 4 * Traits::kConsumers);
    }
    cutlass::arch::fence_barrier_init();
    for (const sm90::TileMap* map : {&args.q, &args.k, &args.v}) {
      cute::prefetch_tma_descriptor(&map->whole);
      cute::prefetch_tma_descriptor(&map->part);
    }
    cute::prefetch_tma_descriptor(&args.out);
  }
  if constexpr (Traits::kTerm) {
    if (args.term.kind == ScoreTermKind::kBucketed) sm90::fill_buckets(smem.buckets, args.term);
  }
  const int32_t sequences = args.batch.size();
  if (sequences > TileList::kFewSequences) {
    smem.tiles.build(args.batch, Traits::kTileRows, Traits::kThreads);
  } else {
    if (produces) smem.tiles.build_by_warp(mine, sequences, args.batch, Traits::kTileRows);
    __syncthreads();  // barriers are ready
  }

  if (threadIdx.x >= kProducer) {
    if constexpr (Traits::kMoveRegisters) {
      cutlass::arch::warpgroup_reg_dealloc<Traits::kProducerRegisters>();
    }
    if (produces) sm90::produce<Traits>(args, smem);
  } else {
    if constexpr (Traits::kMoveRegisters) {
      cutlass::arch::warpgroup_reg_alloc<Traits::kConsumerRegisters>();
    }
    sm90::Consumer<Traits>(args, smem).run();
  }
}

}  // namespace packhorse::cuda
