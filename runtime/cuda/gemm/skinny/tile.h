// The tile of a dense layer for few rows (gemm/skinny/skinny.h): a pure host function, so that it
// can be tested without a GPU.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/math.h"
#include "cuda/gemm/split_k.h"
#include "ops/activation.h"

namespace packhorse::cuda {

/// Rows of one mma.sync, and the most rows that launch_gemm_skinny takes.
inline constexpr int32_t kSkinnyRows = 8;
inline constexpr int32_t kMostSkinnyRows = 16;

/// The tile of a product. Every block computes `features` columns of the output at a time (rows of
/// the weight) and goes over k in stages of `boxes` boxes of 64 elements for each part of the sum.
struct GemmSkinnyTile {
  int features;
  int parts;  // parts of the sum over k; with several a block has one tile
  int boxes;
  int steps;  // stages that a tile takes
  int stages;
  int blocks;      // blocks of the grid
  int row_blocks;  // blocks of kSkinnyRows rows
  /// True where one copy brings all boxes of a stage, of the rows and of the weight. Issuing a copy
  /// takes a thread about a hundred cycles, longer than a small box takes to arrive.
  bool rows_at_once;
  bool weight_at_once;
  int64_t shared_bytes;

  constexpr int warps() const { return ceil_div(features, 16); }  // warps of each part
};

/// Most features of a tile: 16 for each of eight warps.
inline constexpr int kMostSkinnyFeatures = 128;
inline constexpr int kMostSkinnyStages = 16;
/// Bytes of shared memory that a block may have: less than half of an SM's, so that the blocks of
/// the next kernel find room and load their weights while this one computes.
inline constexpr int64_t kSkinnySharedBytes = 100 * 1024;

inline GemmSkinnyTile skinny_tile(int64_t rows, int64_t n, int64_t k, int parts, bool gated,
                                  int sm_count) {
  GemmSkinnyTile tile{};
  // Rotated pairs must not be split, nor blocks of a gate and what it gates.
  const int64_t unit = gated ? 2 * kGateBlock : 2;
  const int64_t most = int64_t{sm_count} * kMostSkinnyFeatures;
  const int64_t passes = ceil_div(n, most);
  const int64_t share = ceil_div(n, sm_count * passes);
  // Copies of several boxes need boxes of whole groups of eight rows.
  constexpr int64_t kSmallShare = 24;
  tile.rows_at_once = k % 64 == 0;
  const bool groups = !gated && tile.rows_at_once;
  const int64_t step = groups && share <= kSmallShare ? 8 : unit;
  tile.features = static_cast<int>(std::min<int64_t>(kMostSkinnyFeatures, round_up(share, step)));
  tile.weight_at_once = groups && tile.features % 8 == 0;
  tile.blocks = static_cast<int>(std::min<int64_t>(sm_count, ceil_div(n, tile.features)));
  tile.parts = parts;
  tile.row_blocks = rows <= kSkinnyRows ? 1 : 2;
  const int64_t weight_rows = round_up(tile.features, 8);
  const int boxes = weight_rows <= 32 ? 4 : weight_rows <= 64 ? 2 : 1;
  tile.boxes = parts == 1 ? boxes : weight_rows * parts <= 64 ? 2 : 1;
  const int64_t box_rows = weight_rows + tile.row_blocks * kSkinnyRows;
  const int64_t stage = parts * tile.boxes * box_rows * 128;
  const int64_t boxes_part = ceil_div(k / parts, kSumUnit);
  tile.steps = static_cast<int>(ceil_div(boxes_part, tile.boxes));
  tile.stages = static_cast<int>(std::clamp<int64_t>(
      std::min<int64_t>(kSkinnySharedBytes / stage, tile.steps), 2, kMostSkinnyStages));
  // The last warp reads 16 rows of a box of the weight, whether they exist or not. Behind that box
  // lie the sums of all parts but the first: 16 bytes of each lane for every block of rows.
  tile.shared_bytes =
      tile.stages * stage + 16 * 128 + int64_t{512} * tile.row_blocks * (parts - 1) * tile.warps();
  return tile;
}

}  // namespace packhorse::cuda
