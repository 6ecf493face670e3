// Parts of a Hopper GEMM kernel (gemm/sm90/kernel.cuh): its arguments, its tile, its shared memory,
// and the order of its tiles.
#pragma once

#include <cuda.h>
#include <cutlass/fast_math.h>
#include <cutlass/numeric_types.h>

#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cute/tensor.hpp>

#include "core/math.h"
#include "cuda/common/pipeline_sm90.cuh"
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/split_k.h"

namespace packhorse::cuda {

/// Work of a kernel's epilogue beside bias and activation.
enum class GemmEpilogue : uint8_t { kPlain, kResidual, kGated, kRotated, kPooled };

struct GemmArgsSm90 {
  sm90::TileMap a;
  CUtensorMap weight, residual, out;
  const float* bias;         // [n] or null
  const int32_t* row_count;  // null: the number of rows is `rows`
  int32_t rows, n, k;
  int32_t parts;                // parts of the sum over k (gemm/split_k.h)
  cutlass::FastDivmod tiles_n;  // the number of tile columns
  int32_t panel;                // tile columns finished, over all rows, before the next ones
  Activation activation;
  GemmRotation rotation;
  GemmPool pool;
  GemmFloat8 float8;
};

/// Compile-time choices of one kernel. `k_boxes` is the number of boxes of 128 bytes of k in a
/// stage. Element is the dtype of the operands, Out that of residual and result. With `in_parts`
/// sums over k have several parts (gemm/split_k.h). Clusters of `cluster` blocks load a weight once
/// for tiles that lie one below the other.
template <class Element_, int tile_m, int tile_n, int k_boxes, bool ping_pong,
          GemmEpilogue epilogue, class Out_ = Element_, bool in_parts = false, int cluster = 1>
struct GemmTraits {
  using Element = Element_;
  using Out = Out_;
  static constexpr int kTileM = tile_m, kTileN = tile_n;
  static constexpr int kBoxes = k_boxes;                 // boxes in a stage
  static constexpr int kBox = 128 / sizeof(Element);     // elements of k in a box
  static constexpr bool kFloat8 = sizeof(Element) == 1;  // operands are e4m3
  static constexpr bool kFloat8Out = sizeof(Out) == 1;   // `Out` is e4m3
  static constexpr bool kPingPong = ping_pong;
  static constexpr bool kResidual = epilogue == GemmEpilogue::kResidual;
  static constexpr bool kGated = epilogue == GemmEpilogue::kGated;
  static constexpr bool kRotated = epilogue == GemmEpilogue::kRotated;
  static constexpr bool kPooled = epilogue == GemmEpilogue::kPooled;  // no tile is stored
  // Large accumulators take registers from the producer's warpgroup. With small ones the producer
  // is a single warp, and blocks leave room on the SM for those of the kernels before and after.
  static constexpr bool kMoveRegisters = tile_m * tile_n / (ping_pong ? 128 : 256) > 64;
  static constexpr int kThreads = 256 + (kMoveRegisters ? 128 : 32);
  // True where the next kernel's blocks start early and wait for this kernel. That saves time in
  // launches of a few microseconds and costs time in longer ones.
  static constexpr bool kNextEarly = tile_m < 128;

  // The part of a tile that one warpgroup works on.
  static constexpr bool kSplitColumns = !ping_pong && tile_m == 64;
  static constexpr int kRows = ping_pong || kSplitColumns ? tile_m : tile_m / 2;
  static constexpr int kColumns = kSplitColumns ? tile_n / 2 : tile_n;
  static constexpr bool kSplitK = in_parts;
  static constexpr int kCluster = cluster;
  static_assert(tile_n / cluster % 8 == 0);      // rows that a swizzle spans
  static constexpr int kBlocks = kRows / 64;     // wgmma blocks of 64 rows, one above the other
  static constexpr int kFolds = kGated ? 2 : 1;  // columns of the product per column of the output
  static constexpr int kOutColumns = kColumns / kFolds;
  // A warp stores stripes: 16 rows, and as many columns as a swizzle spans.
  static constexpr int kOutSize = sizeof(Out);
  static constexpr int kStripeBytes = kOutColumns * kOutSize % 128 == 0  ? 128
                                      : kOutColumns * kOutSize % 64 == 0 ? 64
                                                                         : 32;
  static constexpr int kStripe = kStripeBytes / kOutSize;
  static constexpr int kStripes = kOutColumns / kStripe;
  static constexpr int kStoreBox = kPooled ? 1 : 16 * kStripe;
  static_assert(kRows % 64 == 0 && kOutColumns % kStripe == 0 && kColumns % 16 == 0);
  static_assert(!in_parts ||
                kRows * kColumns / 128 <= 64);  // registers suffice for two sets of sums
  static_assert(!kFloat8Out || (kFloat8 && !kResidual && !kRotated && !kPooled));

  // Stripes that the output buffer holds at a time: all of them, except where stages need the
  // memory more.
  static constexpr int kOutStripes = kResidual || kStripes < 3 ? kStripes
                                     : kStripes % 2 == 0       ? kStripes / 2
                                                               : 1;

  static constexpr int kRowBytes = k_boxes * 128;  // bytes of one row in a stage
  static constexpr int kWeightBytes = tile_n * kRowBytes;
  static constexpr int kStageBytes = tile_m * kRowBytes + kWeightBytes;
  static constexpr int kOutBytes = 8 * kBlocks * kOutStripes * kStoreBox * kOutSize;
  static constexpr int kMostBytes = 232448;  // most shared memory of a block
  static constexpr int kStages = (kMostBytes - kOutBytes - 1024) / kStageBytes;
  static_assert(kStages >= 3);

  using Mma = decltype(cute::make_tiled_mma(
      cute::SM90::GMMA::ss_op_selector<Element, Element, float,
                                       cute::Shape<cute::_64, cute::Int<kColumns>, cute::Int<kBox>>,
                                       cute::SM90::GMMA::Major::K, cute::SM90::GMMA::Major::K>()));
  template <int rows>
  using BoxLayout = decltype(cute::tile_to_shape(cute::SM90::GMMA::Layout_K_SW128_Atom<Element>{},
                                                 cute::Shape<cute::Int<rows>, cute::Int<kBox>>{}));

  struct SharedStorage {
    alignas(1024) Element a[kStages][k_boxes][tile_m * kBox];
    alignas(1024) Element b[kStages][k_boxes][tile_n * kBox];
    alignas(1024) Out out[8][kBlocks * kOutStripes][kStoreBox];  // one part per warp
    alignas(8) uint64_t full[kStages];
    uint64_t empty[kStages];
    uint64_t residual[8];
  };
  // Dynamic shared memory of the kernel is aligned to 1024 bytes.
  static constexpr int kSharedBytes = sizeof(SharedStorage);
  static_assert(kSharedBytes <= kMostBytes);
};

namespace sm90_gemm {

struct Tile {
  int m, n;
};

/// The order of the tiles, or with clusters of the stacks of tiles that a cluster computes at once.
/// Inside a panel the column index runs fastest, and panel follows panel, so that a panel's weights
/// stay in the L2 cache while the rows pass by. A block takes every step()-th tile. With a single
/// panel the place of a tile does not depend on the number of rows, so it is known before that
/// number is loaded.
template <class Traits>
struct Schedule {
  const GemmArgsSm90& args;
  int tiles_m;
  static constexpr int kRows = Traits::kTileM * Traits::kCluster;  // rows of a cluster's tiles
  __device__ Schedule(const GemmArgsSm90& args, int rows)
      : args(args), tiles_m(ceil_div(rows, kRows)) {}
  /// First index of this block's cluster, and the distance to its next one.
  __device__ static int first() { return static_cast<int>(blockIdx.x) / Traits::kCluster; }
  __device__ static int step() { return static_cast<int>(gridDim.x) / Traits::kCluster; }
  __device__ bool one_panel() const { return args.panel >= args.tiles_n.divisor; }
  __device__ bool has(int index) const { return index < tiles_m * args.tiles_n.divisor; }
  /// Returns the tile of any index. Where `has(index)` is false it lies outside of the output, so
  /// that loading it reads zeros.
  __device__ Tile operator()(int index) const {
    Tile tile;
    args.tiles_n(tile.m, tile.n, index);
    if (one_panel()) return in_cluster(tile);
    const int first_n = index / max(1, tiles_m * args.panel) * args.panel;
    const int in_panel = index - tiles_m * first_n;
    const int width = max(1, min(args.panel, args.tiles_n.divisor - first_n));
    tile.m = in_panel / width;
    tile.n = first_n + in_panel - tile.m * width;
    return in_cluster(tile);
  }
  /// This block's tile among those of its cluster.
  __device__ static Tile in_cluster(Tile tile) {
    if (Traits::kCluster > 1) {
      tile.m = tile.m * Traits::kCluster + static_cast<int>(blockIdx.x) % Traits::kCluster;
    }
    return tile;
  }
};

/// Returns the exact number of rows, which may lie in device memory.
__device__ inline int exact_rows(const GemmArgsSm90& args) {
  return args.row_count == nullptr ? args.rows : *args.row_count;
}

}  // namespace sm90_gemm

}  // namespace packhorse::cuda
