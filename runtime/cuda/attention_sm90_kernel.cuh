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

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cutlass/arch/barrier.h>
#include <cutlass/arch/reg_reconfig.h>
#include <cutlass/numeric_types.h>

#include <cute/arch/copy_sm90_tma.hpp>
#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cute/tensor.hpp>

#include "cuda/attention_config.h"
#include "cuda/attention_sm90_softmax.cuh"
#include "cuda/launch.cuh"
#include "cuda/varlen.cuh"
#include "ops/args.h"

namespace packhorse::cuda {

constexpr int32_t kRaggedRows = 1 << 30;

struct AttentionArgsSm90 {
  CUtensorMap q, k, v, out;
  VarlenBatch batch;
  KeyWindow window;
  ScoreTerm term;
  int32_t* next_tile;  // zero, or null: fixed order
  int32_t num_heads;
  int32_t q_heads_per_kv_head;
  float scale;
  bool descending;  // last rows of a sequence first: they are the costly ones
};

/// kKvTile sets the order of a row's sums, so it is one number per head tile; all other choices
/// leave the bits alone.
template <class Element_, int head_tile, int consumers, int kv_tile, int kv_stages, int q_stages,
          int blocks_per_sm, bool overlap, bool term = false, bool single_tile = false>
struct AttentionTraits {
  using Element = Element_;
  static constexpr int kHeadTile = head_tile;
  static constexpr int kConsumers = consumers;  // warpgroups of 64 query rows
  static constexpr int kKvTile = kv_tile;
  static constexpr int kKvStages = kv_stages;
  static constexpr int kQStages = q_stages;
  static constexpr int kBlocksPerSm = blocks_per_sm;
  static constexpr bool kOverlap = overlap;  // scores of the next tile beside values of this one
  static constexpr bool kTerm = term;        // adds AttentionArgsSm90::term to the scores
  static constexpr bool kSingleTile = single_tile;  // no sequence has more than kKvTile keys
  static_assert(!(overlap && single_tile), "one key tile has no next one to overlap with");
  static constexpr bool kPingPong = overlap && consumers > 1;
  static constexpr bool kMoveRegisters = blocks_per_sm == 1 && consumers > 1;

  static constexpr int kTileRows = 64 * consumers;
  static constexpr int kProducerThreads = kMoveRegisters ? 128 : 32;
  static constexpr int kThreads = 128 * consumers + kProducerThreads;
  static constexpr int kProducerRegisters = consumers == 2 ? 24 : 32;
  static constexpr int kConsumerRegisters = consumers == 2 ? 240 : 160;

  // One TMA box: kBoxColumns columns, a swizzle span wide, of all rows of a tile.
  static constexpr int kBoxColumns = head_tile % 64 == 0 ? 64 : 32;
  static constexpr int kBoxes = head_tile / kBoxColumns;
  using Major = cute::SM90::GMMA::Major;
  using KAtom =
      std::conditional_t<kBoxColumns == 64, cute::SM90::GMMA::Layout_K_SW128_Atom<Element>,
                         cute::SM90::GMMA::Layout_K_SW64_Atom<Element>>;
  using MnAtom =
      std::conditional_t<kBoxColumns == 64, cute::SM90::GMMA::Layout_MN_SW128_Atom<Element>,
                         cute::SM90::GMMA::Layout_MN_SW64_Atom<Element>>;
  template <int rows>
  using RowsShape = cute::Shape<cute::Int<rows>, cute::Int<head_tile>>;
  using LayoutQ = decltype(cute::tile_to_shape(KAtom{}, RowsShape<64>{}));
  using LayoutK = decltype(cute::tile_to_shape(KAtom{}, RowsShape<kv_tile>{}));
  using LayoutVt = decltype(cute::tile_to_shape(
      MnAtom{}, cute::Shape<cute::Int<head_tile>, cute::Int<kv_tile>>{},
      cute::Step<cute::_2, cute::_1>{}));

  template <int columns>
  using MmaQk = decltype(cute::make_tiled_mma(
      cute::SM90::GMMA::ss_op_selector<
          Element, Element, float, cute::Shape<cute::_64, cute::Int<columns>, cute::Int<head_tile>>,
          Major::K, Major::K>()));
  using MmaPv = decltype(cute::make_tiled_mma(
      cute::SM90::GMMA::rs_op_selector<
          Element, Element, float, cute::Shape<cute::_64, cute::Int<head_tile>, cute::Int<kv_tile>>,
          Major::K, Major::MN>()));

  struct SharedStorage {
    alignas(1024) Element q[q_stages][consumers][64 * head_tile];  // later the output rows
    alignas(1024) Element k[kv_stages][kv_tile * head_tile];
    alignas(1024) Element v[kv_stages][kv_tile * head_tile];
    TileList tiles;
    uint8_t buckets[term ? 2 * kAttentionMaxTermDistance + 1 : 1];
    QueryTile tile[q_stages];
    alignas(8) uint64_t q_full[q_stages], q_empty[q_stages];
    uint64_t k_full[kv_stages], k_empty[kv_stages];
    uint64_t v_full[kv_stages], v_empty[kv_stages];
  };
  static constexpr int kSharedBytes = sizeof(SharedStorage);
};

namespace sm90 {

using Barrier = cutlass::arch::ClusterBarrier;
using TxBarrier = cutlass::arch::ClusterTransactionBarrier;

/// Position in a ring of `stages` buffers.
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

/// A value that all lanes hold alike, in a form that the compiler knows to be so: what depends on
/// it (loop counters, stages, wgmma descriptors) then stays in uniform registers.
__device__ inline int32_t uniform(int32_t value) { return __shfl_sync(~0u, value, 0); }

__device__ inline void named_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ inline void named_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Ragged coordinates of a row of a sequence.
struct RaggedRow {
  int32_t x, y;
  __device__ RaggedRow(int32_t begin, int32_t length, int32_t row)
      : x(kRaggedRows - length + row), y(begin + length) {}
};

template <class Traits>
__device__ void load_tile(const CUtensorMap* map, uint64_t* full, typename Traits::Element* smem,
                          int rows, int32_t head, RaggedRow row) {
  for (int box = 0; box < Traits::kBoxes; ++box) {
    cute::SM90_TMA_LOAD_5D::copy(map, full,
                                 static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL),
                                 smem + box * rows * Traits::kBoxColumns, box * Traits::kBoxColumns,
                                 head, row.x, row.y, int32_t{kRaggedRows});
  }
}

template <class Traits>
__device__ void produce(const AttentionArgsSm90& args, typename Traits::SharedStorage& smem) {
  constexpr int kRows = Traits::kTileRows;
  constexpr uint32_t kKvBytes = sizeof(smem.k[0]);
  const bool first_lane = threadIdx.x % 32 == 0;
  Ring<Traits::kQStages> q;
  Ring<Traits::kKvStages> kv;
  const int32_t total = smem.tiles.num_tiles();
  int32_t index = blockIdx.x;
  QueryTile tile;
  if (index < total) tile = smem.tiles.find(index, args.batch, kRows, args.descending);
  // Up to here only the batch's offsets were read, which the previous kernel does not write. All
  // that consumers do follows from loads issued below.
  wait_for_previous_kernel();
  let_next_kernel_start();
  while (index < total) {
    int32_t taken = 0;  // looked at after this tile's loads: the counter is a long way off
    if (first_lane && args.next_tile != nullptr) taken = atomicAdd(args.next_tile, 1);
    const KeyTiles keys(tile, args.window, kRows, Traits::kKvTile);
    if (cute::elect_one_sync()) {
      const Sequence& s = tile.sequence;
      const int groups = min(Traits::kConsumers, (s.q_length - tile.row + 63) / 64);

      Barrier::wait(&smem.q_empty[q.index], q.phase ^ 1);
      smem.tile[q.index] = tile;
      if (keys.count() == 0) {
        Barrier::arrive(&smem.q_full[q.index]);
      } else {
        TxBarrier::arrive_and_expect_tx(&smem.q_full[q.index], groups * sizeof(smem.q[0][0]));
        for (int g = 0; g < groups; ++g) {
          load_tile<Traits>(&args.q, &smem.q_full[q.index], smem.q[q.index][g], 64, tile.head,
                            RaggedRow(s.q_begin, s.q_length, tile.row + 64 * g));
        }
      }

      // The consumers read K0, K1, V0, K2, V1, ..., so this is the order of the loads.
      const int32_t kv_head = tile.head / args.q_heads_per_kv_head;
      Ring<Traits::kKvStages> k = kv, v = kv;
      for (int32_t t = keys.end; t >= keys.begin; --t) {
        if (t > keys.begin) {
          Barrier::wait(&smem.k_empty[k.index], k.phase ^ 1);
          TxBarrier::arrive_and_expect_tx(&smem.k_full[k.index], kKvBytes);
          load_tile<Traits>(&args.k, &smem.k_full[k.index], smem.k[k.index], Traits::kKvTile,
                            kv_head, RaggedRow(s.k_begin, s.k_length, (t - 1) * Traits::kKvTile));
          k.advance();
        }
        if (t < keys.end) {
          Barrier::wait(&smem.v_empty[v.index], v.phase ^ 1);
          TxBarrier::arrive_and_expect_tx(&smem.v_full[v.index], kKvBytes);
          load_tile<Traits>(&args.v, &smem.v_full[v.index], smem.v[v.index], Traits::kKvTile,
                            kv_head, RaggedRow(s.k_begin, s.k_length, t * Traits::kKvTile));
          v.advance();
        }
      }
    }
    __syncwarp();
    q.advance();
    kv.advance(keys.count());
    if (args.next_tile == nullptr) {
      index += gridDim.x;
    } else {
      // Every block takes until nothing is left, so this is the launch's last take.
      if (first_lane && taken == total - 1) *args.next_tile = 0;
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

template <class Traits>
struct Consumer {
  using Element = typename Traits::Element;
  using Storage = typename Traits::SharedStorage;
  static constexpr int kKvTile = Traits::kKvTile;
  static constexpr int kHeadTile = Traits::kHeadTile;
  using MmaPv = typename Traits::MmaPv;

  const AttentionArgsSm90& args;
  Storage& smem;
  const int group = uniform(threadIdx.x / 128);
  const int thread = threadIdx.x % 128;
  const bool warp_leader = threadIdx.x % 32 == 0;
  Ring<Traits::kQStages> q;
  Ring<Traits::kKvStages> k, v;
  int32_t stored_stage = -1;  // output rows there may still be on their way out
  const float scale_log2;
  // Keys [unmasked_begin, unmasked_end) are seen by all of this warpgroup's rows.
  int32_t unmasked_begin, unmasked_end;
  int32_t k_length;

  __device__ Consumer(const AttentionArgsSm90& args, Storage& smem)
      : args(args),
        smem(smem),
        scale_log2(1.4426950408889634f * (Traits::kTerm ? 1.0f : args.scale)) {}

  static constexpr int kHalfTile = kKvTile / 2;

  /// Only a sequence's last tile is partial; where half of it is enough, the other half, all zeros,
  /// would not change a bit.
  __device__ bool ends_in_half(const KeyTiles& keys) const {
    return k_length - (keys.end - 1) * kKvTile <= kHalfTile;
  }

  /// Whether some row of this warpgroup does not see all keys of tile t.
  __device__ bool masked(int32_t t) const {
    return (t + 1) * kKvTile > unmasked_end || t * kKvTile < unmasked_begin;
  }

  __device__ const QueryTile& tile() const { return smem.tile[q.index]; }

  __device__ void release(uint64_t* empty) const {
    if (warp_leader) Barrier::arrive(empty);
  }
  // Named barriers 1 .. kConsumers: a warpgroup's own; then the ping-pong turn of each.
  __device__ void sync_group() const { named_sync(1 + group, 128); }
  __device__ void take_turn() const {
    if constexpr (Traits::kPingPong) named_sync(1 + Traits::kConsumers + group, 256);
  }
  __device__ void pass_turn() const {
    if constexpr (Traits::kPingPong) {
      named_arrive(1 + Traits::kConsumers + (group + 1) % Traits::kConsumers, 256);
    }
  }

  /// Lets the producer refill the stage of the previous tile once its output rows have been read.
  __device__ void release_stored_stage() {
    if (stored_stage >= 0 && thread == 0) {
      cute::tma_store_wait<0>();
      Barrier::arrive(&smem.q_empty[stored_stage]);
    }
    stored_stage = -1;
  }

  /// Scores of `columns` keys; asynchronous.
  template <int columns, class Scores>
  __device__ void issue_scores(Scores& scores) {
    using namespace cute;
    typename Traits::template MmaQk<columns> mma;
    const auto slice = mma.get_slice(thread);
    const Tensor sq =
        make_tensor(make_smem_ptr(smem.q[q.index][group]), typename Traits::LayoutQ{});
    const Tensor sk_all = make_tensor(make_smem_ptr(smem.k[k.index]), typename Traits::LayoutK{});
    const Tensor sk = local_tile(sk_all, Shape<Int<columns>, Int<kHeadTile>>{}, make_coord(0, 0));
    const Tensor a = slice.partition_fragment_A(sq);
    const Tensor b = slice.partition_fragment_B(sk);
    mma.accumulate_ = SM90::GMMA::ScaleOut::Zero;
    warpgroup_fence_operand(scores);
    warpgroup_arrive();
    CUTE_UNROLL
    for (int i = 0; i < size<2>(a); ++i) {
      cute::gemm(mma, a(_, _, i), b(_, _, i), scores);
      mma.accumulate_ = SM90::GMMA::ScaleOut::One;
    }
    warpgroup_commit_batch();
  }

  /// out += probabilities of the first `columns` keys times their values; asynchronous.
  template <int columns, class Probabilities, class Out>
  __device__ void issue_values(Probabilities& p, Out& out) {
    using namespace cute;
    MmaPv mma;
    const auto slice = mma.get_slice(thread);
    const Tensor sv = make_tensor(make_smem_ptr(smem.v[v.index]), typename Traits::LayoutVt{});
    const Tensor b = slice.partition_fragment_B(sv);
    mma.accumulate_ = SM90::GMMA::ScaleOut::One;
    warpgroup_fence_operand(out);
    warpgroup_fence_operand(p);
    warpgroup_arrive();
    CUTE_UNROLL
    for (int i = 0; i < columns / 16; ++i) cute::gemm(mma, p(_, _, i), b(_, _, i), out);
    warpgroup_commit_batch();
  }

  template <int columns, class Scores, class Probabilities>
  __device__ static void to_probabilities(const Scores& s, Probabilities& p) {
    using namespace cute;
    Tensor words = recast<uint32_t>(p);
    CUTE_UNROLL
    for (int i = 0; i < columns / 4; ++i) words(i) = pack<Element>(s(2 * i), s(2 * i + 1));
  }

  template <class Out>
  __device__ static void rescale_rows(Out& out, const float (&factor)[2]) {
    CUTE_UNROLL
    for (int i = 0; i < kHeadTile / 2; ++i) out(i) = __fmul_rn(out(i), factor[i / 2 % 2]);
  }

  /// Scores of key tile t to probabilities, in place.
  template <int columns, bool with_mask>
  __device__ void softmax(float* s, Softmax& state, int32_t t, float (&rescale)[2]) {
    const int32_t first_key = t * kKvTile;
    if constexpr (Traits::kTerm)
      add_term<columns>(s, tile(), args.term, args.scale, args.num_heads, smem.buckets, first_key);
    if constexpr (with_mask) {
      if (masked(t)) mask_scores<columns>(s, tile(), args.window, first_key);
    }
    state.template update<columns>(s, scale_log2, rescale);
  }

  /// One key tile after the other: for kernels that leave the overlap to the SM's other blocks. The
  /// sums of a first tile need no registers until its probabilities are known.
  template <int columns, bool first, class Out>
  __device__ void step(Out& out, Softmax& state, int32_t t) {
    using namespace cute;
    Tensor s = make_tensor<float>(Shape<Shape<_2, _2, Int<columns / 8>>, _1, _1>{});
    Tensor p = make_tensor<Element>(Shape<Shape<_2, _2, _2>, _1, Int<columns / 16>>{});
    float rescale[2];
    Barrier::wait(&smem.k_full[k.index], k.phase);
    issue_scores<columns>(s);
    if constexpr (first) release_stored_stage();
    warpgroup_wait<0>();
    warpgroup_fence_operand(s);
    release(&smem.k_empty[k.index]);
    k.advance();
    softmax<columns, true>(s.data(), state, t, rescale);
    to_probabilities<columns>(s, p);
    if constexpr (first) {
      clear(out);
    } else {
      rescale_rows(out, rescale);
    }
    Barrier::wait(&smem.v_full[v.index], v.phase);
    issue_values<columns>(p, out);
    warpgroup_wait<0>();
    warpgroup_fence_operand(out);
    release(&smem.v_empty[v.index]);
    v.advance();
  }

  template <class Out>
  __device__ void attend_in_steps(Out& out, Softmax& state, const KeyTiles& keys) {
    int32_t t = keys.end - 1;
    if (ends_in_half(keys)) {
      step<kHalfTile, true>(out, state, t);
    } else {
      step<kKvTile, true>(out, state, t);
    }
    if constexpr (!Traits::kSingleTile) {
      while (--t >= keys.begin) step<kKvTile, false>(out, state, t);
    }
  }

  /// The first tile of the overlapped path: probabilities of `columns` keys, zeros for the rest.
  template <int columns, class Scores, class Probabilities>
  __device__ void first_probabilities(Scores& scores, Probabilities& p, Softmax& state, int32_t t) {
    using namespace cute;
    Tensor s = make_tensor(scores.data(), Shape<Shape<_2, _2, Int<columns / 8>>, _1, _1>{});
    float rescale[2];
    issue_scores<columns>(s);
    release_stored_stage();
    warpgroup_wait<0>();
    warpgroup_fence_operand(s);
    release(&smem.k_empty[k.index]);
    k.advance();
    softmax<columns, true>(s.data(), state, t, rescale);
    to_probabilities<columns>(s, p);
    Tensor words = recast<uint32_t>(p);
    CUTE_UNROLL
    for (int i = columns / 4; i < kKvTile / 4; ++i) words(i) = 0;
  }

  template <class Out>
  __device__ void attend_overlapped(Out& out, Softmax& state, const KeyTiles& keys) {
    using namespace cute;
    Tensor s = make_tensor<float>(Shape<Shape<_2, _2, Int<kKvTile / 8>>, _1, _1>{});
    Tensor p = make_tensor<Element>(Shape<Shape<_2, _2, _2>, _1, Int<kKvTile / 16>>{});
    float rescale[2];
    clear(out);
    Barrier::wait(&smem.k_full[k.index], k.phase);
    if (ends_in_half(keys)) {
      first_probabilities<kHalfTile>(s, p, state, keys.end - 1);
    } else {
      first_probabilities<kKvTile>(s, p, state, keys.end - 1);
    }
    int32_t t = keys.end - 2;
    const auto next_tile = [&](auto with_mask) {
      Barrier::wait(&smem.k_full[k.index], k.phase);
      take_turn();
      issue_scores<kKvTile>(s);
      Barrier::wait(&smem.v_full[v.index], v.phase);
      issue_values<kKvTile>(p, out);
      pass_turn();
      warpgroup_wait<1>();
      warpgroup_fence_operand(s);
      release(&smem.k_empty[k.index]);
      k.advance();
      softmax<kKvTile, decltype(with_mask)::value>(s.data(), state, t, rescale);
      warpgroup_wait<0>();
      warpgroup_fence_operand(out);
      release(&smem.v_empty[v.index]);
      v.advance();
      rescale_rows(out, rescale);
      to_probabilities<kKvTile>(s, p);
      --t;
    };
    // A loop of its own, without mask code, for the tiles that all rows see: 3 to 10 %.
    while (t >= keys.begin) {
      if (masked(t)) {
        next_tile(std::true_type{});
      } else {
        do {
          next_tile(std::false_type{});
        } while (t >= keys.begin && !masked(t));
      }
    }
    Barrier::wait(&smem.v_full[v.index], v.phase);
    issue_values<kKvTile>(p, out);
    warpgroup_wait<0>();
    warpgroup_fence_operand(out);
    release(&smem.v_empty[v.index]);
    v.advance();
  }

  /// A warpgroup without rows in this tile only keeps the barriers going.
  __device__ void skip(const KeyTiles& keys) {
    release_stored_stage();
    for (int32_t t = keys.begin; t < keys.end; ++t) {
      if (t > keys.begin) {
        take_turn();
        pass_turn();
      }
      Barrier::wait(&smem.k_full[k.index], k.phase);
      release(&smem.k_empty[k.index]);
      k.advance();
      Barrier::wait(&smem.v_full[v.index], v.phase);
      release(&smem.v_empty[v.index]);
      v.advance();
    }
  }

  /// Normalises, converts, and sends the rows out through the warpgroup's part of the Q buffer.
  template <class Out>
  __device__ void store(const Out& out, const Softmax& state) {
    float inverse[2];
    state.inverse_sum(inverse);
    Element* buffer = smem.q[q.index][group];
    sync_group();  // no warp may still be reading Q
    const ThreadPart part;
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      CUTE_UNROLL
      for (int g = 0; g < kHeadTile / 8; ++g) {
        constexpr int kChunks = Traits::kBoxColumns / 8;  // of 16 bytes; swizzled as TMA does it
        const int swizzled = (g % kChunks) ^ (kChunks == 8 ? part.row % 8 : part.row / 2 % 4);
        const int offset = (g / kChunks * 64 + part.row + 8 * r) * Traits::kBoxColumns +
                           swizzled * 8 + part.column;
        *reinterpret_cast<uint32_t*>(buffer + offset) =
            pack<Element>(out(4 * g + 2 * r) * inverse[r], out(4 * g + 2 * r + 1) * inverse[r]);
      }
    }
    cute::tma_store_fence();
    sync_group();
    if (thread == 0) {
      const Sequence& s = tile().sequence;
      const RaggedRow at(s.q_begin, s.q_length, tile().row + 64 * group);
      for (int box = 0; box < Traits::kBoxes; ++box) {
        cute::SM90_TMA_STORE_5D::copy(&args.out, buffer + box * 64 * Traits::kBoxColumns,
                                      box * Traits::kBoxColumns, tile().head, at.x, at.y,
                                      int32_t{kRaggedRows});
      }
      cute::tma_store_arrive();
    }
  }

  __device__ void run() {
    using namespace cute;
    if (Traits::kPingPong && group == Traits::kConsumers - 1) pass_turn();  // the first one starts
    for (;; q.advance()) {
      Barrier::wait(&smem.q_full[q.index], q.phase);
      if (uniform(tile().head) < 0) break;
      KeyTiles keys(tile(), args.window, Traits::kTileRows, kKvTile);
      keys.begin = uniform(keys.begin);
      keys.end = uniform(keys.end);
      if (uniform(tile().sequence.q_length - tile().row) <= 64 * group) {
        skip(keys);
      } else {
        const int32_t first = uniform(first_position(tile()));
        k_length = uniform(tile().sequence.k_length);
        unmasked_begin = first + 63 - args.window.left;
        unmasked_end = min(k_length, first + args.window.right + 1);
        Tensor out = make_tensor<float>(Shape<Shape<_2, _2, Int<kHeadTile / 8>>, _1, _1>{});
        Softmax state;
        if (keys.count() == 0) {
          release_stored_stage();
          clear(out);
        } else if constexpr (Traits::kOverlap) {
          attend_overlapped(out, state, keys);
        } else {
          attend_in_steps(out, state, keys);
        }
        store(out, state);
      }
      stored_stage = q.index;
      if constexpr (Traits::kQStages == 1) release_stored_stage();
    }
    release_stored_stage();  // shared memory must outlive the reads
  }
};

}  // namespace sm90

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kBlocksPerSm)
    attention_sm90_kernel(const __grid_constant__ AttentionArgsSm90 args) {
  extern __shared__ __align__(1024) uint8_t raw_smem[];
  auto& smem = *reinterpret_cast<typename Traits::SharedStorage*>(raw_smem);
  if (threadIdx.x == 0) {
    for (int i = 0; i < Traits::kQStages; ++i) {
      sm90::Barrier::init(&smem.q_full[i], 1);
      sm90::Barrier::init(&smem.q_empty[i], Traits::kConsumers);
    }
    for (int i = 0; i < Traits::kKvStages; ++i) {
      sm90::Barrier::init(&smem.k_full[i], 1);
      sm90::Barrier::init(&smem.k_empty[i], 4 * Traits::kConsumers);
      sm90::Barrier::init(&smem.v_full[i], 1);
      sm90::Barrier::init(&smem.v_empty[i], 4 * Traits::kConsumers);
    }
    cutlass::arch::fence_barrier_init();
    cute::prefetch_tma_descriptor(&args.q);
    cute::prefetch_tma_descriptor(&args.k);
    cute::prefetch_tma_descriptor(&args.v);
    cute::prefetch_tma_descriptor(&args.out);
  }
  if constexpr (Traits::kTerm) {
    if (args.term.kind == ScoreTermKind::kBucketed) sm90::fill_buckets(smem.buckets, args.term);
  }
  smem.tiles.build(args.batch, Traits::kTileRows, Traits::kThreads);

  if (threadIdx.x >= 128 * Traits::kConsumers) {
    if constexpr (Traits::kMoveRegisters) {
      cutlass::arch::warpgroup_reg_dealloc<Traits::kProducerRegisters>();
    }
    if (threadIdx.x < 128 * Traits::kConsumers + 32) sm90::produce<Traits>(args, smem);
  } else {
    if constexpr (Traits::kMoveRegisters) {
      cutlass::arch::warpgroup_reg_alloc<Traits::kConsumerRegisters>();
    }
    sm90::Consumer<Traits>(args, smem).run();
  }
}

}  // namespace packhorse::cuda
