// What a Hopper GEMM kernel is made of: its tile, its shared memory, the order of its tiles.
#pragma once

#include <cuda.h>
#include <cutlass/fast_math.h>

#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cute/tensor.hpp>

#include "cuda/gemm/gemm.h"
#include "cuda/pipeline_sm90.cuh"

namespace packhorse::cuda {

/// What happens to a tile on its way out, beside bias and activation.
enum class GemmEpilogue : uint8_t { kPlain, kResidual, kGated, kRotated, kPooled };

struct GemmArgsSm90 {
  sm90::TileMap a;
  CUtensorMap weight, residual, out;
  const float* bias;         // or null
  const int32_t* row_count;  // or null: rows
  int32_t rows, n, k;
  cutlass::FastDivmod tiles_n;  // tile columns
  int32_t panel;                // as many are finished, all rows long, before the next ones begin
  Activation activation;
  GemmRotation rotation;
  GemmPool pool;
};

template <class Element_, int tile_m, int tile_n, int k_boxes, bool ping_pong,
          GemmEpilogue epilogue>
struct GemmTraits {
  using Element = Element_;
  static constexpr int kTileM = tile_m, kTileN = tile_n;
  static constexpr int kBoxes = k_boxes;  // boxes of 64 k in a stage
  static constexpr bool kPingPong = ping_pong;
  static constexpr bool kResidual = epilogue == GemmEpilogue::kResidual;
  static constexpr bool kGated = epilogue == GemmEpilogue::kGated;
  static constexpr bool kRotated = epilogue == GemmEpilogue::kRotated;
  static constexpr bool kPooled = epilogue == GemmEpilogue::kPooled;  // no tile is stored
  // Large accumulators take registers from the producer's warpgroup; with small ones a block leaves
  // room for blocks of the kernels before and after.
  static constexpr bool kMoveRegisters = tile_m * tile_n / (ping_pong ? 128 : 256) > 64;
  static constexpr int kThreads = 256 + (kMoveRegisters ? 128 : 32);
  // The next kernel's blocks, which wait for this one, come early where a launch is over in a few
  // microseconds; beside longer ones they cost more than they gain.
  static constexpr bool kNextEarly = tile_m < 128;

  // A warpgroup's part of a tile.
  static constexpr bool kSplitColumns = !ping_pong && tile_m == 64;
  static constexpr int kRows = ping_pong || kSplitColumns ? tile_m : tile_m / 2;
  static constexpr int kColumns = kSplitColumns ? tile_n / 2 : tile_n;
  static constexpr int kBlocks = kRows / 64;     // wgmma blocks, one above the other
  static constexpr int kFolds = kGated ? 2 : 1;  // columns of the product for one of the output
  static constexpr int kOutColumns = kColumns / kFolds;
  // What a warp stores at once: 16 rows, one swizzle span wide.
  static constexpr int kStripe = kOutColumns % 64 == 0 ? 64 : kOutColumns % 32 == 0 ? 32 : 16;
  static constexpr int kStripes = kOutColumns / kStripe;
  static constexpr int kStoreBox = kPooled ? 1 : 16 * kStripe;
  static_assert(kRows % 64 == 0 && kOutColumns % 16 == 0 && kColumns % 16 == 0);

  // Stripes in the buffer at a time: all of them, except where stages need the room more.
  static constexpr int kOutStripes = kResidual || kStripes < 3 ? kStripes
                                     : kStripes % 2 == 0       ? kStripes / 2
                                                               : 1;

  static constexpr int kRowBytes = k_boxes * 64 * 2;  // of a stage
  static constexpr int kWeightBytes = tile_n * kRowBytes;
  static constexpr int kStageBytes = tile_m * kRowBytes + kWeightBytes;
  static constexpr int kOutBytes = 8 * kBlocks * kOutStripes * kStoreBox * 2;
  static constexpr int kMostBytes = 232448;  // of shared memory for one block
  static constexpr int kStages = (kMostBytes - kOutBytes - 1024) / kStageBytes;
  static_assert(kStages >= 3);

  using Mma = decltype(cute::make_tiled_mma(
      cute::SM90::GMMA::ss_op_selector<Element, Element, float,
                                       cute::Shape<cute::_64, cute::Int<kColumns>, cute::_64>,
                                       cute::SM90::GMMA::Major::K, cute::SM90::GMMA::Major::K>()));
  template <int rows>
  using BoxLayout = decltype(cute::tile_to_shape(cute::SM90::GMMA::Layout_K_SW128_Atom<Element>{},
                                                 cute::Shape<cute::Int<rows>, cute::_64>{}));

  struct SharedStorage {
    alignas(1024) Element a[kStages][k_boxes][tile_m * 64];
    alignas(1024) Element b[kStages][k_boxes][tile_n * 64];
    alignas(1024) Element out[8][kBlocks * kOutStripes][kStoreBox];  // of each warp
    alignas(8) uint64_t full[kStages];
    uint64_t empty[kStages];
    uint64_t residual[8];
  };
  // The base of dynamic shared memory is aligned to 1024 bytes here.
  static constexpr int kSharedBytes = sizeof(SharedStorage);
  static_assert(kSharedBytes <= kMostBytes);
};

namespace sm90_gemm {

struct Tile {
  int m, n;
};

/// Tiles in order: columns fastest inside panels, panel after panel, so that a panel's weights stay
/// in L2 while the rows pass by. A block takes every gridDim.x-th. In one panel a tile's place does
/// not depend on the rows: it is known before their number is.
template <class Traits>
struct Schedule {
  const GemmArgsSm90& args;
  int tiles_m;
  __device__ Schedule(const GemmArgsSm90& args, int rows)
      : args(args), tiles_m((rows + Traits::kTileM - 1) / Traits::kTileM) {}
  __device__ bool one_panel() const { return args.panel >= args.tiles_n.divisor; }
  __device__ bool has(int index) const { return index < tiles_m * args.tiles_n.divisor; }
  /// Of any index; what the schedule does not have lies outside of the output.
  __device__ Tile operator()(int index) const {
    Tile tile;
    args.tiles_n(tile.m, tile.n, index);
    if (one_panel()) return tile;
    const int first_n = index / max(1, tiles_m * args.panel) * args.panel;
    const int in_panel = index - tiles_m * first_n;
    const int width = max(1, min(args.panel, args.tiles_n.divisor - first_n));
    tile.m = in_panel / width;
    tile.n = first_n + in_panel - tile.m * width;
    return tile;
  }
};

__device__ inline int exact_rows(const GemmArgsSm90& args) {
  return args.row_count == nullptr ? args.rows : *args.row_count;
}

}  // namespace sm90_gemm

}  // namespace packhorse::cuda
