// What the Hopper kernel of compressed convolutional attention (convolve_sm90_kernel.cuh) is made
// of: its arguments, its sizes and layouts, and its shared memory.
#pragma once

#include <cutlass/numeric_types.h>

#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cute/tensor.hpp>

#include "cuda/convolution/convolve_order.h"
#include "cuda/convolution/convolve_shares.cuh"
#include "cuda/pipeline_sm90.cuh"
#include "ops/convolve_args.h"

namespace packhorse::cuda {

struct ConvolveArgsSm90 {
  ConvolveHeadsArgs args;
  ConvolveShares shares;
  /// Latents of queries and keys, in boxes of 64 columns by a tile's rows and by those and the two
  /// before them. Rows before the first and past the last are zeros.
  CUtensorMap tile, tile_and_before;
};

/// Element_: __half or __nv_bfloat16. head_dim: 64 or 128. No choice here changes the bits.
template <class Element_, int head_dim>
struct ConvolveTraits {
  using Element = Element_;
  static constexpr int kHeadDim = head_dim;
  static constexpr int kPanels = head_dim / kPanelColumns;
  static constexpr int kConsumers = 3;   // warpgroups, each with a tile of its own
  static constexpr int kTileRows = 64;   // what one wgmma has
  static constexpr int kRowsBefore = 2;  // whose latents a row needs
  static constexpr int kThreads = 128 * (kConsumers + 1);
  // Of the last warpgroup, the first warp copies tiles and the others shift values.
  static constexpr int kValueWarps = 3;
  static constexpr int kConsumerRegisters = 152;
  static constexpr int kOtherRegisters = 56;
  static_assert(128 * (kConsumers * kConsumerRegisters + kOtherRegisters) <= 65536);

  static constexpr int kBoxColumns = 64;  // of 128 bytes, which are swizzled
  static constexpr int kBoxes = head_dim / kBoxColumns;
  static constexpr int kOwnRows = kTileRows + kRowsBefore;
  static constexpr int kOwnPitch = (kOwnRows + 7) / 8 * 8;  // rows from one box to the next
  static constexpr int kOwnStages = head_dim == 64 ? 8 : 5;
  static constexpr int kOtherStages = head_dim == 64 ? 8 : 4;
  static constexpr uint32_t kOwnBytes = kBoxes * kOwnRows * kBoxColumns * 2;
  static constexpr uint32_t kOtherBytes = kBoxes * kTileRows * kBoxColumns * 2;

  /// Weights: outputs by inputs of both taps, both in the order of convolve_order.h.
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

  /// Where the latents before some rows of a tile are not those of the rows before it, because
  /// sequences begin there.
  struct Borders {
    /// Of each row the latents of the token before, and of the one before that, where they are not
    /// in the tile: in the state, or null for zeros. Not written where `plain`.
    const Element* older[kTileRows][kRowsBefore];
    uint8_t in_tile[kTileRows];  // bit b: the latents of the token b + 1 before are in the tile
    int32_t plain;               // all of them are
  };

  struct SharedStorage {
    alignas(1024) CuteElement weights[head_dim * kInputs];
    alignas(1024) Element own[kOwnStages][kBoxes][kOwnPitch * kBoxColumns];
    alignas(1024) Element other[kOtherStages][kBoxes][kTileRows * kBoxColumns];
    alignas(16) float depthwise[2][head_dim];
    float depthwise_bias[head_dim];
    float grouped_bias[head_dim];
    float frequencies[head_dim / 2];
    Borders borders[kOwnStages];
    alignas(8) uint64_t own_full[kOwnStages], own_empty[kOwnStages];
    uint64_t other_full[kOtherStages], other_empty[kOtherStages];
  };
  static constexpr int kSharedBytes = sizeof(SharedStorage);
  static_assert(kSharedBytes <= 227 * 1024);
};

}  // namespace packhorse::cuda
