// A consumer warpgroup of Hopper attention (attention/sm90/kernel.cuh). For each query tile it owns
// 64 rows, goes through the tiles of keys from the last to the first, computes scores by wgmma,
// turns them into probabilities in registers, multiplies these with the values by wgmma, and stores
// the rows of the output by TMA.
#pragma once

#include <cute/arch/copy_sm90_tma.hpp>

#include "cuda/attention/sm90/softmax.cuh"
#include "cuda/attention/sm90/traits.cuh"
#include "cuda/common/float8.cuh"

namespace packhorse::cuda::sm90 {

/// The state of one thread of a consumer warpgroup. `q`, `k` and `v` are its places in the rings of
/// stages that the producer fills.
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
  int32_t stored_stage = -1;  // the Q stage that the previous output is being stored from, or -1
  const float scale_log2;
  // All rows of this warpgroup see the keys [unmasked_begin, unmasked_end).
  int32_t unmasked_begin, unmasked_end;
  int32_t k_length;

  __device__ Consumer(const AttentionArgsSm90& args, Storage& smem)
      : args(args),
        smem(smem),
        scale_log2(1.4426950408889634f * (Traits::kTerm ? 1.0f : args.scale)) {}

  static constexpr int kHalfTile = kKvTile / 2;

  /// Returns whether at most half of the last key tile lies in the sequence. The other half is then
  /// left out of the products: it would be masked, and its values may not have been copied. Only
  /// the last tile of a sequence can be partial.
  __device__ bool ends_in_half(const KeyTiles& keys) const {
    return k_length - (keys.end - 1) * kKvTile <= kHalfTile;
  }

  /// Returns whether some row of this warpgroup does not see all keys of key tile t.
  __device__ bool masked(int32_t t) const {
    return (t + 1) * kKvTile > unmasked_end || t * kKvTile < unmasked_begin;
  }

  /// The query tile that this warpgroup computes.
  __device__ const QueryTile& tile() const { return smem.tile[q.index]; }

  /// Tells the producer that this warp is done with a stage of keys or values.
  __device__ void release(uint64_t* empty) const {
    if (warp_leader) Barrier::arrive(empty);
  }
  // The named barriers 1 to kConsumers each synchronise one warpgroup. The next kConsumers give the
  // turn of ping-pong to one warpgroup each: take_turn waits for it, pass_turn gives it to the
  // next.
  __device__ void sync_group() const { named_sync(1 + group, 128); }
  __device__ void take_turn() const {
    if constexpr (Traits::kPingPong) named_sync(1 + Traits::kConsumers + group, 256);
  }
  __device__ void pass_turn() const {
    if constexpr (Traits::kPingPong) {
      named_arrive(1 + Traits::kConsumers + (group + 1) % Traits::kConsumers, 256);
    }
  }

  /// Lets the producer refill the Q stage of the previous tile. Every thread arrives for itself,
  /// since every thread reads the description of the tile. The thread that issued the store of the
  /// output from that stage first waits until the store has read it.
  __device__ void release_stored_stage() {
    if (stored_stage >= 0) {
      if (thread == 0) cute::tma_store_wait<0>();
      Barrier::arrive(&smem.q_empty[stored_stage]);
    }
    stored_stage = -1;
  }

  /// Issues scores = Q K^T for the first `columns` keys of the current stage. Asynchronous.
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

  /// Issues out += P V for the first `columns` keys of the current stage. Asynchronous. With
  /// `partial`, only the values of the first `keys` keys were copied, and the steps of 16 keys past
  /// them are left out.
  template <int columns, bool partial = false, class Probabilities, class Out>
  __device__ void issue_values(Probabilities& p, Out& out, int32_t keys = columns) {
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
    for (int i = 0; i < columns / 16; ++i) {
      if (!partial || i == 0 || 16 * i < keys) cute::gemm(mma, p(_, _, i), b(_, _, i), out);
    }
    warpgroup_commit_batch();
  }

  /// Converts the probabilities to Element. The registers of a wgmma accumulator are, pair by pair,
  /// those of an A operand.
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

  /// Turns the scores of key tile t into probabilities, in place. `rescale` receives the factors by
  /// which the output so far must be multiplied.
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

  /// Computes one key tile from scores to output, without overlap: for kernels whose other blocks
  /// on the SM hide the latency. With `first`, the output's registers are cleared only after the
  /// probabilities are known, so that they are free until then.
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
    issue_values<columns, first>(p, out, k_length - t * kKvTile);
    warpgroup_wait<0>();
    warpgroup_fence_operand(out);
    release(&smem.v_empty[v.index]);
    v.advance();
  }

  /// Goes through all key tiles in steps.
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

  /// Computes the probabilities of the first tile of attend_overlapped: those of `columns` keys,
  /// and zeros for the rest of the tile.
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

  /// Goes through all key tiles with two products in flight: the values of one tile are multiplied
  /// during the softmax of the next one's scores.
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
    // Tiles that all rows see have a loop of their own without the code for masks, which makes the
    // kernel 3 to 10 % faster.
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

  /// Waits and arrives at all barriers of a query tile in which this warpgroup has no rows.
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

  /// Divides the rows by their sums, converts them, and stores them by TMA from the warpgroup's
  /// part of the Q stage.
  template <class Out>
  __device__ void store(const Out& out, const Softmax& state) {
    float inverse[2];
    state.inverse_sum(inverse);
    Element* buffer = smem.q[q.index][group];
    sync_group();  // from here on no warp reads Q
    if constexpr (Traits::kFloat8Out) return store_float8(out, inverse);
    const ThreadPart part;
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      CUTE_UNROLL
      for (int g = 0; g < kHeadTile / 8; ++g) {
        constexpr int kChunks = Traits::kBoxColumns / 8;  // 16-byte chunks that TMA swizzles
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

  /// Second half of `store`, for results in e4m3.
  template <class Out>
  __device__ void store_float8(const Out& out, const float (&inverse)[2]) {
    constexpr int kBytes = Traits::kFloat8Columns;  // bytes of a row of a box
    auto* buffer = reinterpret_cast<unsigned char*>(smem.q[q.index][group]);
    const ThreadPart part;
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      const float factor = inverse[r] * args.out_factor;
      CUTE_UNROLL
      for (int g = 0; g < kHeadTile / 8; ++g) {
        const int row = part.row + 8 * r;
        const int column = g * 8 % kBytes + part.column;
        const int offset = (g * 8 / kBytes * 64 + row) * kBytes +
                           swizzled_chunk(row, column / 16, kBytes) * 16 + column % 16;
        *reinterpret_cast<uint16_t*>(buffer + offset) =
            pack_float8(out(4 * g + 2 * r) * factor, out(4 * g + 2 * r + 1) * factor);
      }
    }
    cute::tma_store_fence();
    sync_group();
    if (thread == 0) {
      const Sequence& s = tile().sequence;
      const RaggedRow at(s.q_begin, s.q_length, tile().row + 64 * group);
      for (int box = 0; box < kHeadTile / kBytes; ++box) {
        cute::SM90_TMA_STORE_5D::copy(&args.out, buffer + box * 64 * kBytes, box * kBytes,
                                      tile().head, at.x, at.y, int32_t{kRaggedRows});
      }
      cute::tma_store_arrive();
    }
  }

  /// Computes query tiles until the producer sends one with a negative head.
  __device__ void run() {
    using namespace cute;
    // The last warpgroup gives the first turn to warpgroup 0.
    if (Traits::kPingPong && group == Traits::kConsumers - 1) pass_turn();
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
    release_stored_stage();  // shared memory must stay until the last store has read it
  }
};

}  // namespace packhorse::cuda::sm90
