// Dense layers for few rows on Hopper: what a step of generation asks for, whose time is that of
// reading the weight once. This is the host interface, and the choice of the tile.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "cuda/gemm/gemm.h"

namespace packhorse::cuda {

/// The most rows that launch_gemm_few takes: as many as one mma.sync has.
inline constexpr int32_t kMostFewRows = 8;

/// The tile of such a product. Every block has `features` columns of the output at a time (rows of
/// the weight) and goes over k in stages of `boxes` boxes of 64 elements.
struct GemmFewTile {
  int features;
  int boxes;
  int stages;
  int blocks;  // of the grid
  /// Whether one copy brings all boxes of a stage, of the rows and of the weight. A thread takes
  /// about a hundred cycles for a copy, which is longer than a small box takes to arrive.
  bool rows_at_once;
  bool weight_at_once;
  int64_t shared_bytes;
};

/// Eight warps have 16 features each.
inline constexpr int kMostFewFeatures = 128;
inline constexpr int kMostFewStages = 16;
/// Shared memory that a block may have: less than half of a multiprocessor's, so that the blocks of
/// the next kernel find room and load their weights while this one computes.
inline constexpr int64_t kFewSharedBytes = 100 * 1024;

inline GemmFewTile few_tile(int64_t n, int64_t k, bool gated, int sm_count) {
  GemmFewTile tile{};
  // Rotated pairs must not be split, nor blocks of a gate and what it gates.
  const int64_t unit = gated ? 2 * kGateBlock : 2;
  const int64_t most = int64_t{sm_count} * kMostFewFeatures;
  const int64_t passes = (n + most - 1) / most;
  const int64_t share = (n + sm_count * passes - 1) / (sm_count * passes);
  // Copies of several boxes need boxes of whole groups of eight rows.
  constexpr int64_t kSmallShare = 24;
  tile.rows_at_once = k % 64 == 0;
  const bool groups = !gated && tile.rows_at_once;
  const int64_t step = groups && share <= kSmallShare ? 8 : unit;
  tile.features =
      static_cast<int>(std::min<int64_t>(kMostFewFeatures, (share + step - 1) / step * step));
  tile.weight_at_once = groups && tile.features % 8 == 0;
  tile.blocks =
      static_cast<int>(std::min<int64_t>(sm_count, (n + tile.features - 1) / tile.features));
  const int64_t weight_rows = (tile.features + 7) / 8 * 8;
  tile.boxes = weight_rows <= 32 ? 4 : weight_rows <= 64 ? 2 : 1;
  const int64_t stage = tile.boxes * (weight_rows + kMostFewRows) * 128;
  const int64_t stages_k = ((k + 63) / 64 + tile.boxes - 1) / tile.boxes;
  tile.stages = static_cast<int>(
      std::clamp<int64_t>(std::min(kFewSharedBytes / stage, stages_k), 2, kMostFewStages));
  // The last warp reads 16 rows of a box of the weight, whether they exist or not.
  tile.shared_bytes = tile.stages * stage + 16 * 128;
  return tile;
}

/// Whether launch_gemm_few is to compute this: what it can, and where it was measured to be faster
/// than launch_gemm_sm90 (docs/experiments/cuda_generation.md). That is from about 4 MB of weight
/// on, except for long sums over large weights.
inline bool is_few(const GemmParams& params) {
  constexpr int64_t kLeast = int64_t{2} << 20;  // elements
  constexpr int64_t kMostLong = int64_t{32} << 20;
  const int64_t elements = int64_t{params.n} * params.k;
  return params.rows <= kMostFewRows && params.pool.out == nullptr && elements >= kLeast &&
         (params.k <= params.n || elements <= kMostLong) &&
         (!params.gated || params.n % (2 * kGateBlock) == 0);
}

/// Launches the product. It is asynchronous on `stream`, allocates nothing and may be captured into
/// a graph; the rules are those of launch_gemm_sm90, and so are the bits of every row. Throws
/// RuntimeError.
void launch_gemm_few(const GemmParams& params, cudaStream_t stream);

}  // namespace packhorse::cuda
