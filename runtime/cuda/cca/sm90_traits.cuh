// Parts of the Hopper kernel of compressed convolutional attention (cca/sm90_kernel.cuh): its
// arguments, its sizes and layouts, and its shared memory.
#pragma once

#include <cutlass/numeric_types.h>

#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cute/tensor.hpp>

#include "core/math.h"
#include "cuda/cca/order.h"
#include "cuda/cca/shares.cuh"
#include "cuda/common/pipeline_sm90.cuh"
#include "ops/args/cca.h"

namespace packhorse::cuda {

struct CcaArgsSm90 {
  CcaArgs args;
  CcaShares shares;
  /// Latents of queries and keys, in boxes of 64 columns by a tile's rows and by those and the two
  /// before them. Rows before the first and past the last are zeros.
  CUtensorMap tile, tile_and_before;
};

/// Element_: __half or __nv_bfloat16. head_dim: 64 or 128. No choice here changes the bits.
template <class Element_, int head_dim>
struct CcaTraits {
  using Element = Element_;
  static constexpr int kHeadDim = head_dim;
  static constexpr int kPanels = head_dim / kPanelColumns;
  static constexpr int kConsumers = 3;   // warpgroups, each with tiles of its own
  static constexpr int kTileRows = 64;   // rows of one wgmma
  static constexpr int kRowsBefore = 2;  // rows before a row, whose latents it needs
  // In the last warpgroup, each consumer has a warp that produces for it; one warp is idle.
  static constexpr int kThreads = 128 * (kConsumers + 1);
  static constexpr int kConsumerRegisters = 152;
  static constexpr int kProducerRegisters = 56;
  static_assert(128 * (kConsumers * kConsumerRegisters + kProducerRegisters) <= 65536);

  // Latents come in boxes of 64 columns, that is 128 bytes, which are swizzled.
  static constexpr int kBoxColumns = 64;
  static constexpr int kBoxes = head_dim / kBoxColumns;
  static constexpr int kOwnRows = kTileRows + kRowsBefore;  // rows of the tile's own head
  static constexpr int kBoxPitch = round_up(kOwnRows, 8);  // rows from one box of these to the next
  static constexpr uint32_t kOwnBytes = kBoxes * kOwnRows * kBoxColumns * 2;
  static constexpr uint32_t kOtherBytes = kBoxes * kTileRows * kBoxColumns * 2;

  /// A consumer has so many stages of latents. The first ones, by own_stages, hold tiles of its own
  /// head; the others hold heads that enter the mean, of which a head of keys has more.
  static constexpr int kStages = head_dim == 64 ? 6 : 3;
  static constexpr int kMostOwnStages = head_dim == 64 ? 3 : 2;
  __host__ __device__ static constexpr int own_stages(bool query) {
    return query ? kMostOwnStages : kMostOwnStages - 1;
  }
  static constexpr int kStageElements = kBoxes * kBoxPitch * kBoxColumns;

  /// Weights: outputs by inputs of both taps, both in the order of cca/order.h.
  static constexpr int kInputs = 2 * head_dim;
  using CuteElement =
      std::conditional_t<std::is_same_v<Element, __half>, cutlass::half_t, cutlass::bfloat16_t>;
  using LayoutWeights = decltype(cute::tile_to_shape(
      cute::SM90::GMMA::Layout_MN_SW128_Atom<CuteElement>{},
      cute::Shape<cute::Int<head_dim>, cute::Int<kInputs>>{}, cute::Step<cute::_2, cute::_1>{}));
  using Mma =
      decltype(cute::make_tiled_mma(cute::SM90::GMMA::rs_op_selector<
                                    CuteElement, CuteElement, float,
                                    cute::Shape<cute::_64, cute::Int<head_dim>, cute::Int<kInputs>>,
                                    cute::SM90::GMMA::Major::K, cute::SM90::GMMA::Major::MN>()));

  /// Borders of sequences in a tile: rows whose latents before them are not those of the tile's
  /// rows before.
  struct Borders {
    /// The row of the state that holds the latents of the token before, and of the one before that,
    /// for each row of the tile where they are not in the tile; -1 stands for zeros. Not written
    /// where `plain`.
    int32_t older[kTileRows][kRowsBefore];
    uint8_t in_tile[kTileRows];  // bit b: the latents of the token b + 1 before are in the tile
    int32_t plain;               // not 0: the tile holds all of them
  };

  /// Shared memory of one consumer and its producer.
  struct Exchange {
    Borders borders[kMostOwnStages];
    alignas(8) uint64_t full[kStages], empty[kStages];
  };
  /// The last stage is never one of the own head's, and so needs kTileRows rows alone.
  static constexpr int kStagesElements =
      (kStages - 1) * kStageElements + kBoxes * kTileRows * kBoxColumns;
  struct SharedStorage {
    alignas(1024) CuteElement weights[head_dim * kInputs];
    alignas(1024) Element stages[kConsumers][kStagesElements];
    alignas(16) float depthwise[2][head_dim];
    float depthwise_bias[head_dim];
    float grouped_bias[head_dim];
    float frequencies[head_dim / 2];
    Exchange exchange[kConsumers];
  };
  static_assert(kStagesElements * 2 % 1024 == 0, "swizzles repeat after 1,024 bytes");
  static constexpr int kSharedBytes = sizeof(SharedStorage);
  static_assert(kSharedBytes <= 227 * 1024);
};

/// A ring of `count` of a consumer's stages, from stage `first` on: the place in it, and the parity
/// of the phase of the barrier `full` there that its current use waits for.
struct CcaRing {
  int first;
  int count;
  int place = 0;
  uint32_t phase = 0;
  __device__ int stage() const { return first + place; }
  __device__ void advance() {
    if (++place == count) {
      place = 0;
      phase ^= 1;
    }
  }
};

/// The rings of a block that works on `head`.
template <class Traits>
__device__ CcaRing own_ring(const CcaArgs& args, int head) {
  return {0, Traits::own_stages(head < args.num_heads)};
}
template <class Traits>
__device__ CcaRing other_ring(const CcaArgs& args, int head) {
  const int first = Traits::own_stages(head < args.num_heads);
  return {first, Traits::kStages - first};
}

/// The tiles of one consumer of a block: every kConsumers-th of the block's, which are every
/// parts-th of all.
template <class Traits>
struct CcaTiles {
  int first;  // row of the current tile
  const int step;
  const int tokens;
  __device__ CcaTiles(const BlockShare& share, int group, int tokens)
      : first((share.part + group * share.parts) * Traits::kTileRows),
        step(Traits::kConsumers * share.parts * Traits::kTileRows),
        tokens(tokens) {}
  __device__ explicit operator bool() const { return first < tokens; }
  __device__ void advance() { first += step; }
};

}  // namespace packhorse::cuda
