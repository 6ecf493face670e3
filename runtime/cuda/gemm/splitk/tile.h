// The tile of a dense layer whose parts of a sum are computed by a cluster
// (gemm/splitk/splitk_cluster.h). These are pure host functions, so that they can be tested without
// a GPU.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "core/math.h"
#include "cuda/gemm/split_k.h"

namespace packhorse::cuda {

/// Most rows of a product that one warpgroup multiplies: those of one wgmma. Products of more rows
/// are cut into tiles of kTallRows rows, which two warpgroups multiply.
inline constexpr int32_t kMostClusterRows = 64;
inline constexpr int32_t kTallRows = 128;
inline constexpr int32_t kRowsPart = 32;  // rows of a copy where a tile of kTallRows is not full
inline constexpr int kMostClusterFeatures = 128;
inline constexpr int kMostClusterStages = 16;
/// Threads of a block: warpgroups that multiply, and two warps that copy.
constexpr int cluster_threads(int groups) { return 128 * groups + 64; }

/// The tile of a product: 64 or kTallRows rows times `features` columns, computed by a cluster with
/// a block for each part of the sum, or for two parts. A block goes over a part of k in `steps`
/// stages of `boxes` boxes of 64 elements.
struct GemmSplitkClusterTile {
  int features;
  int columns;  // columns of a wgmma that holds the features: 32 (up to 64 rows), 64 or 128
  int parts;
  int blocks;      // the blocks of a cluster: as many as parts, or half as many
  int groups;      // warpgroups that multiply, each 64 rows
  int row_blocks;  // tiles that lie one below the other
  int row_box;     // rows of a stage: those of the product, rounded up to 16, or those of a tile
  int boxes;
  int steps;
  int stages;
  int clusters;  // clusters of the grid
  int slots;     // units of eight columns of the output that a block finishes, at most
  /// True: received sums lie where the stages were, for which all blocks of a cluster must have
  /// read theirs. Otherwise they lie behind the stages.
  bool sums_in_stages;
  int64_t sums_at;  // offset of received sums in shared memory
  int64_t shared_bytes;

  /// Sums that are added for an element: those of the first block, and those of each part of the
  /// other blocks.
  constexpr int terms() const { return 1 + (blocks - 1) * (parts / blocks); }
  constexpr int stage_bytes() const { return boxes * (row_box + features) * 128; }
};

/// Bytes of shared memory for a block that has an SM to itself, and for one of two that share an
/// SM.
inline constexpr int64_t kClusterSharedBytes = 224 * 1024;
inline constexpr int64_t kPairedSharedBytes = kClusterSharedBytes / 2;

/// Clusters of a given number of blocks that run at a time on a device, with one and with two
/// blocks per SM. A cluster lies in one group of SMs (GPC), and groups have different numbers of
/// SMs, so the driver has to be asked (clusters_at_once of splitk/splitk_cluster.h).
struct ClustersAtOnce {
  int alone;
  int paired;
};

/// Returns the least number of columns of a tile with which `clusters` tiles cover all n, so that
/// as many SMs as possible read the weight. The number may exceed kMostClusterFeatures.
inline int64_t cluster_features(int64_t n, int clusters) {
  const int64_t share = ceil_div(n, clusters);
  return round_up(share, 8);
}

/// Returns the tile of `features` columns, for a cluster of `blocks` blocks, whose stages fit into
/// `shared_bytes` of shared memory.
inline GemmSplitkClusterTile cluster_tile(int64_t rows, int64_t n, int64_t k, int parts, int blocks,
                                          int features, int64_t shared_bytes) {
  GemmSplitkClusterTile tile{};
  tile.parts = parts;
  tile.blocks = blocks;
  tile.groups = rows <= kMostClusterRows ? 1 : 2;
  const int tile_rows = kMostClusterRows * tile.groups;
  tile.features = features;
  tile.columns = blocks < parts || features > 64 ? 128 : tile.groups > 1 || features > 32 ? 64 : 32;
  tile.row_blocks = static_cast<int>(ceil_div(rows, tile_rows));
  tile.row_box = static_cast<int>(round_up(std::min<int64_t>(rows, tile_rows), 16));
  tile.clusters = static_cast<int>(ceil_div(n, features)) * tile.row_blocks;
  tile.slots = ceil_div(features / 8, blocks);
  // Sums are 16 bytes of each lane for every unit, 16 rows and term. Before they arrive, wgmma
  // reads the memory behind the last box, where a tile has fewer columns or rows than the
  // instruction.
  const int64_t sums = int64_t{512} * (tile.row_box / 16) * tile.slots * tile.terms();
  const int64_t beyond = int64_t{128} * std::max(tile.columns - features, tile_rows - tile.row_box);
  const int boxes_part = static_cast<int>(k / parts / kSumUnit);
  // A copy takes a thread about a hundred cycles, so small boxes are copied together, as long as
  // there is room for three stages.
  tile.boxes = std::min(features <= 32 ? 4 : features <= 64 ? 2 : 1, boxes_part);
  // The sums of two parts a block would leave room for few stages.
  tile.sums_in_stages = blocks < parts;
  const int64_t behind = tile.sums_in_stages ? beyond : std::max(sums, beyond);
  for (;; --tile.boxes) {
    tile.steps = ceil_div(boxes_part, tile.boxes);
    const int64_t room = (shared_bytes - behind) / tile.stage_bytes();
    tile.stages = std::min(static_cast<int>(std::clamp<int64_t>(room, 2, kMostClusterStages)),
                           tile.steps * (parts / blocks));
    if (tile.boxes == 1 || room >= std::min(3, tile.steps)) break;
  }
  const int64_t stages = int64_t{tile.stages} * tile.stage_bytes();
  tile.sums_at = tile.sums_in_stages ? 0 : stages;
  tile.shared_bytes = std::max(stages + behind, tile.sums_at + sums);
  return tile;
}

/// Returns the tile of a product of up to kMostClusterRows rows for which all clusters run at once.
/// A second round of clusters would double the time, so where a tile cannot be wide enough, two
/// blocks share an SM.
inline GemmSplitkClusterTile few_rows_tile(int64_t rows, int64_t n, int64_t k, int parts,
                                           const ClustersAtOnce& at_once) {
  const int64_t features = cluster_features(n, at_once.alone);
  if (features <= kMostClusterFeatures) {
    return cluster_tile(rows, n, k, parts, parts, static_cast<int>(features), kClusterSharedBytes);
  }
  const int64_t narrow =
      std::min<int64_t>(cluster_features(n, at_once.paired), kMostClusterFeatures);
  return cluster_tile(rows, n, k, parts, parts, static_cast<int>(narrow), kPairedSharedBytes);
}

/// Returns the predicted microseconds of tiles of kTallRows rows that all run at once, fitted to
/// measurements on an H200 (docs/developer/notebook/cuda_generation.md).
inline double predict_tall(const GemmSplitkClusterTile& tile, int64_t k) {
  const auto boxes = static_cast<double>(k / kSumUnit / tile.blocks);
  if (tile.blocks < tile.parts) return 7.6 + boxes * (tile.features <= 112 ? 0.28 : 0.373);
  if (tile.columns <= 64) return 2.9 + boxes * 0.23;
  return 4.9 + boxes * (tile.features <= 104 ? 0.30 : 0.38);
}

/// Returns the tile of a product of more than kMostClusterRows rows for clusters of `blocks`
/// blocks, of which `alone` run at once; none if they would need a second round, or if the kernel
/// that is predicted to take `others` microseconds is faster.
inline std::optional<GemmSplitkClusterTile> tall_tile(int64_t rows, int64_t n, int64_t k, int parts,
                                                      int blocks, int alone, double& others) {
  const int columns = alone / static_cast<int>(ceil_div<int64_t>(rows, kTallRows));
  if (columns == 0) return std::nullopt;
  const int64_t features = cluster_features(n, columns);
  if (features > kMostClusterFeatures) return std::nullopt;
  const GemmSplitkClusterTile tile =
      cluster_tile(rows, n, k, parts, blocks, static_cast<int>(features), kClusterSharedBytes);
  const double time = predict_tall(tile, k);
  if (time >= others) return std::nullopt;
  others = time;
  return tile;
}

}  // namespace packhorse::cuda
