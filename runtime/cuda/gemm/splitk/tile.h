// The tile of a dense layer whose parts of a sum are computed by a cluster
// (gemm/splitk/splitk_cluster.h). These are pure host functions, so that they can be tested without
// a GPU.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/math.h"
#include "cuda/gemm/split_k.h"

namespace packhorse::cuda {

/// Rows of one wgmma, and the most rows that launch_gemm_splitk_cluster takes.
inline constexpr int32_t kMostClusterRows = 64;
inline constexpr int kMostClusterFeatures = 128;
inline constexpr int kMostClusterStages = 16;
inline constexpr int kClusterThreads = 192;  // a warpgroup, and two warps that copy

/// The tile of a product: all rows times `features` columns, computed by a cluster with a block for
/// each part of the sum. A block goes over its part of k in `steps` stages of `boxes` boxes of 64
/// elements.
struct GemmSplitkClusterTile {
  int features;
  int columns;  // columns of a wgmma: the least of 32, 64 and 128 that holds the features
  int parts;
  int row_box;  // rows that are copied: those that exist, rounded up to 16
  int boxes;
  int steps;
  int stages;
  int clusters;     // clusters of the grid
  int slots;        // units of eight columns of the output that a block finishes, at most
  int64_t sums_at;  // offset of received sums in shared memory, behind the stages
  int64_t shared_bytes;

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

/// Returns the tile of `features` columns whose stages fit into `shared_bytes` of shared memory.
inline GemmSplitkClusterTile cluster_tile(int64_t rows, int64_t n, int64_t k, int parts,
                                          int features, int64_t shared_bytes) {
  GemmSplitkClusterTile tile{};
  tile.features = features;
  tile.columns = features <= 32 ? 32 : features <= 64 ? 64 : 128;
  tile.parts = parts;
  tile.row_box = static_cast<int>(round_up(rows, 16));
  tile.clusters = static_cast<int>(ceil_div(n, features));
  tile.slots = ceil_div(features / 8, parts);
  // Sums are 16 bytes of each lane for every unit, 16 rows and part. Before they arrive, wgmma
  // reads the memory behind the last box, where a tile has fewer columns or rows than the
  // instruction.
  const int64_t sums = int64_t{512} * (tile.row_box / 16) * tile.slots * parts;
  const int64_t beyond =
      int64_t{128} * std::max(tile.columns - features, kMostClusterRows - tile.row_box);
  const int64_t behind = std::max(sums, beyond);
  const int boxes_part = static_cast<int>(k / parts / kSumUnit);
  // A copy takes a thread about a hundred cycles, so small boxes are copied together, as long as
  // there is room for three stages.
  tile.boxes = std::min(features <= 32 ? 4 : features <= 64 ? 2 : 1, boxes_part);
  for (;; --tile.boxes) {
    tile.steps = ceil_div(boxes_part, tile.boxes);
    const int64_t room = (shared_bytes - behind) / tile.stage_bytes();
    tile.stages =
        std::min(static_cast<int>(std::clamp<int64_t>(room, 2, kMostClusterStages)), tile.steps);
    if (tile.boxes == 1 || room >= std::min(3, tile.steps)) break;
  }
  tile.sums_at = int64_t{tile.stages} * tile.stage_bytes();
  tile.shared_bytes = tile.sums_at + behind;
  return tile;
}

/// Returns the tile for which all clusters run at once. A second round of clusters would double the
/// time, so where a tile cannot be wide enough, two blocks share an SM.
inline GemmSplitkClusterTile cluster_tile(int64_t rows, int64_t n, int64_t k, int parts,
                                          const ClustersAtOnce& at_once) {
  const int64_t features = cluster_features(n, at_once.alone);
  if (features <= kMostClusterFeatures) {
    return cluster_tile(rows, n, k, parts, static_cast<int>(features), kClusterSharedBytes);
  }
  const int64_t narrow =
      std::min<int64_t>(cluster_features(n, at_once.paired), kMostClusterFeatures);
  return cluster_tile(rows, n, k, parts, static_cast<int>(narrow), kPairedSharedBytes);
}

}  // namespace packhorse::cuda
