// Parts of a Hopper attention kernel (attention/sm90/kernel.cuh): its arguments, its sizes and
// layouts, its shared memory, and the barriers between producer and consumers.
#pragma once

#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cute/tensor.hpp>

#include "cuda/attention/config.h"
#include "cuda/attention/varlen.cuh"
#include "cuda/common/pipeline_sm90.cuh"
#include "ops/args/attention.h"

namespace packhorse::cuda {

/// The extent of ragged tensor maps (attention/sm90/kernel.cuh) in rows: more than any sequence
/// has.
constexpr int32_t kRaggedRows = 1 << 30;

struct AttentionArgsSm90 {
  sm90::TileMap q, k, v;
  CUtensorMap out;
  VarlenBatch batch;
  KeyWindow window;
  ScoreTerm term;
  // Shared counter of tiles, zero between launches; null: tiles in a fixed order.
  int32_t* next_tile;
  int32_t num_heads;
  int32_t q_heads_per_kv_head;
  float scale;
  bool descending;   // a sequence's last rows first: with a causal mask they cost the most
  float out_factor;  // factor of results in e4m3
};

/// Compile-time choices of one kernel. kKvTile sets the order in which the sums of a row are
/// formed, so it depends on head tile and window alone; all other choices leave the bits alone.
template <class Element_, int head_tile, int consumers, int kv_tile, int kv_stages, int q_stages,
          int blocks_per_sm, bool overlap, bool term = false, bool single_tile = false,
          bool float8_out = false>
struct AttentionTraits {
  using Element = Element_;
  static constexpr int kHeadTile = head_tile;
  static constexpr int kConsumers = consumers;  // warpgroups of 64 query rows
  static constexpr int kKvTile = kv_tile;       // keys per tile
  static constexpr int kKvStages = kv_stages;
  static constexpr int kQStages = q_stages;
  static constexpr int kBlocksPerSm = blocks_per_sm;
  // Computes the scores of the next key tile while the values of this one are multiplied.
  static constexpr bool kOverlap = overlap;
  static constexpr bool kTerm = term;               // adds AttentionArgsSm90::term to the scores
  static constexpr bool kSingleTile = single_tile;  // no sequence has more than kKvTile keys
  static constexpr bool kFloat8Out = float8_out;    // results are e4m3
  static_assert(!(overlap && single_tile), "one key tile has no next one to overlap with");
  static constexpr bool kPingPong = overlap && consumers > 1;
  static constexpr bool kMoveRegisters = blocks_per_sm == 1 && consumers > 1;

  static constexpr int kTileRows = 64 * consumers;
  static constexpr int kProducerThreads = kMoveRegisters ? 128 : 32;
  static constexpr int kThreads = 128 * consumers + kProducerThreads;
  static constexpr int kProducerRegisters = consumers == 2 ? 24 : 32;
  static constexpr int kConsumerRegisters = consumers == 2 ? 240 : 160;

  // One TMA box has kBoxColumns columns, as wide as the swizzle spans, and all rows of a tile.
  static constexpr int kBoxColumns = head_tile % 64 == 0 ? 64 : 32;
  static constexpr int kBoxes = head_tile / kBoxColumns;
  // Columns of a box of results in e4m3, as wide as the swizzle spans.
  static constexpr int kFloat8Columns = head_tile % 128 == 0 ? 128 : head_tile % 64 == 0 ? 64 : 32;
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
    alignas(1024) Element q[q_stages][consumers][64 * head_tile];  // later the rows of the output
    alignas(1024) Element k[kv_stages][kv_tile * head_tile];
    alignas(1024) Element v[kv_stages][kv_tile * head_tile];
    TileList tiles;
    // Bucket of every distance (fill_buckets).
    uint8_t buckets[term ? 2 * kAttentionMaxTermDistance + 1 : 1];
    QueryTile tile[q_stages];  // the query tile in each Q stage
    alignas(8) uint64_t q_full[q_stages], q_empty[q_stages];
    uint64_t k_full[kv_stages], k_empty[kv_stages];
    uint64_t v_full[kv_stages], v_empty[kv_stages];
  };
  static constexpr int kSharedBytes = sizeof(SharedStorage);
};

namespace sm90 {

/// Waits at named barrier `id` until `threads` threads have arrived (PTX ISA, bar.sync).
__device__ inline void named_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/// Arrives at named barrier `id` without waiting (PTX ISA, bar.arrive).
__device__ inline void named_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// The ragged coordinates of row `row` of a sequence of `length` rows that begins at packed row
/// `begin`.
struct RaggedRow {
  int32_t x, y;
  __device__ RaggedRow(int32_t begin, int32_t length, int32_t row)
      : x(kRaggedRows - length + row), y(begin + length) {}
};

}  // namespace sm90

}  // namespace packhorse::cuda
