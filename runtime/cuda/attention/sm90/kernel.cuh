// Fused variable-length attention for Hopper: the design of FlashAttention-3 (arXiv 2407.08608,
// sections 3.1 and 3.2) over packed sequences.
//
// The grid is persistent: a block takes query tiles of (sequence, head) from a list until none is
// left. Its producer warp copies tiles of Q, K and V to shared memory by TMA (the Tensor Memory
// Accelerator), through rings of stages with mbarriers. Every consumer warpgroup owns 64 query rows
// and keeps its probabilities in registers, as the A operand of the second wgmma. Where registers
// suffice, it computes the scores of the next key tile while the values of this one are being
// multiplied.
//
// Boundaries between packed sequences cost nothing, because the tensor maps are "ragged". A row has
// two coordinates, x = kRaggedRows - length + row and y = begin + length, which both have the
// stride of a row. A third coordinate, always kRaggedRows, takes kRaggedRows rows back by its
// stride, since addresses wrap at 2^64. So x reaches the extent of the map exactly at the end of
// the sequence, beyond which TMA reads zeros and writes nothing: a NaN of the next sequence never
// enters, and no store needs a predicate.
#pragma once

#include <cutlass/arch/barrier.h>
#include <cutlass/arch/reg_reconfig.h>

#include <cute/arch/copy_sm90_tma.hpp>

#include "core/math.h"
#include "cuda/attention/sm90/consumer.cuh"
#include "cuda/attention/sm90/traits.cuh"
#include "cuda/common/launch.cuh"

namespace packhorse::cuda {

namespace sm90 {

/// Issues the copies of the first `copied` rows of a tile of `rows` rows of one head, from the
/// sequence's row `row` on. Each box of columns of a whole tile takes one copy, that of a partial
/// tile one copy per kPartRows rows.
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

/// The producer warp. For every query tile that this block takes, one lane issues the copies of Q,
/// and of K and V tile by tile, as the consumers free the stages. The next tile's number comes from
/// a counter in global memory that all blocks share.
template <class Traits>
__device__ void produce(const AttentionArgsSm90& args, typename Traits::SharedStorage& smem) {
  constexpr int kRows = Traits::kTileRows;
  constexpr uint32_t kRowBytes = sizeof(smem.k[0]) / Traits::kKvTile;
  const bool first_lane = threadIdx.x % 32 == 0;
  Ring<Traits::kQStages> q;
  Ring<Traits::kKvStages> kv;
  const int32_t total = smem.tiles.num_tiles();
  // Where there are at least as many blocks as tiles, no block takes a second one, and the counter
  // is not needed.
  int32_t* const next_tile = total <= static_cast<int32_t>(gridDim.x) ? nullptr : args.next_tile;
  int32_t index = blockIdx.x;
  QueryTile tile;
  if (index < total) tile = smem.tiles.find(index, args.batch, kRows, args.descending);
  // Code above reads only the batch's offsets, which no kernel that may still run writes. The
  // consumers need no wait of their own: all that they read comes from copies that are issued
  // below.
  wait_for_previous_kernel();
  let_next_kernel_start();
  while (index < total) {
    // The atomic is issued before this tile's copies and its result is used after them, which hides
    // its latency.
    int32_t taken = 0;
    if (first_lane && next_tile != nullptr) taken = atomicAdd(next_tile, 1);
    const KeyTiles keys(tile, args.window, kRows, Traits::kKvTile);
    if (cute::elect_one_sync()) {
      const Sequence& s = tile.sequence;
      const int groups = min(Traits::kConsumers, ceil_div(s.q_length - tile.row, 64));

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
      // Copies are issued in the order in which consumers read: K0, K1, V0, K2, V1, ..., counted
      // from the last key tile to the first. K may hold anything beyond the sequence, since those
      // scores are masked. Overlapped consumers multiply all of V, which must be zero there, so it
      // is copied whole for them.
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
      // A number is taken for each of the `total` tiles, so total - 1 is the last one of this
      // launch, and its taker leaves the counter at zero.
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

/// The first kConsumers warpgroups are consumers, and the warp after them is the producer.
template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kBlocksPerSm)
    attention_sm90_kernel(const __grid_constant__ AttentionArgsSm90 args) {
  extern __shared__ __align__(1024) uint8_t raw_smem[];
  auto& smem = *reinterpret_cast<typename Traits::SharedStorage*>(raw_smem);
  constexpr int kProducer = 128 * Traits::kConsumers;  // the first thread of the producer
  const bool produces = threadIdx.x >= kProducer && threadIdx.x < kProducer + 32;
  // Each lane of the producer loads the offsets of one sequence together with the batch's size, so
  // that short batches wait for global memory once.
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
  if (sequences > TileList::kDecodeSequences) {
    smem.tiles.build(args.batch, Traits::kTileRows, Traits::kThreads);
  } else {
    if (produces) smem.tiles.build_by_warp(mine, sequences, args.batch, Traits::kTileRows);
    __syncthreads();  // the mbarriers are initialised
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
