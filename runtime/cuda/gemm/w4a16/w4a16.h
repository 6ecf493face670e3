// Host interface of dense layers whose weights are quantised in groups of input features
// (WeightGroups), and the choice of tiles.
//
// out[r, n] = residual[r, n] + activation(sum_k a[r, k] * w[n, k] + bias[n])
//
// where w are the float16 numbers to which w4a16/values.cuh decodes the weight, a, residual and out
// are float16, and all else, gate and rotation too, is as in GemmParams. The sum over k is formed
// in the parts of W4a16Split, so a row's bits depend on that row, the weight, n and k alone,
// whichever of the kernels below computes it.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "core/math.h"
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/w4a16/layout.h"

namespace packhorse::cuda {

/// Returns the most rows of a product that launch_gemm_w4a16_skinny takes: 32, or 16 where the
/// parts of a strip (with a gate, of two strips) need more than the 8 warps for which 32 rows leave
/// registers.
inline int32_t most_w4a16_skinny_rows(const GemmParams& p) {
  return w4a16_split(p.n, p.k).splits * (p.gated ? 2 : 1) <= 8 ? 32 : 16;
}

/// The tile of a product of few rows. Every block computes `strips` strips of 16 columns of the
/// product at a time. A warp has one strip and one part of the sum, over which it goes in stages of
/// `depth` blocks of 128 elements of k.
struct W4a16SkinnyTile {
  int rows;  // rows that a tile has room for: 8, 16 or 32
  int strips;
  int depth;
  int rounds;  // stages that a part of the sum takes
  int stages;
  int blocks;  // blocks of the grid
  int shared_bytes;
};

/// Rows whose sums pass through shared memory at a time, and the pitch of a row in floats: 16
/// features, and 4 more to spread what a warp writes at once over different banks.
inline constexpr int kW4a16SumRows = 16;
inline constexpr int kW4a16SumPitch = kW4a16Strip + 4;

/// Returns the bytes of a stage of the rows: for each block of each part of the sum two boxes of 64
/// elements of all rows.
constexpr int w4a16_rows_bytes(const W4a16SkinnyTile& tile, int splits) {
  return splits * tile.depth * 2 * tile.rows * 128;
}
/// Returns the bytes of a stage of one part's weight. TMA writes to multiples of 128.
constexpr int w4a16_part_bytes(const W4a16SkinnyTile& tile, int block_bytes) {
  return round_up(tile.strips * tile.depth * block_bytes, 128);
}
constexpr int w4a16_stage_bytes(const W4a16SkinnyTile& tile, int splits, int block_bytes) {
  const int bytes = w4a16_rows_bytes(tile, splits) + splits * w4a16_part_bytes(tile, block_bytes);
  return round_up(bytes, 1024);  // boxes of rows begin at multiples of 1024
}

inline W4a16SkinnyTile w4a16_skinny_tile(const GemmParams& p) {
  W4a16SkinnyTile tile{};
  const W4a16Layout layout = w4a16_layout(p.n, p.k, p.groups);
  const W4a16Split split = w4a16_split(p.n, p.k);
  tile.rows = p.rows <= 8 ? 8 : p.rows <= 16 ? 16 : 32;
  // Limits shared memory, so that this block finds room beside those of the kernel before.
  const int budget = 150 * 1024;
  const int most_warps = tile.rows <= 16 ? 16 : 8;
  const int unit = p.gated ? 2 : 1;  // a strip of a gate, and the one that it gates
  const int most = most_warps / split.splits / unit * unit;
  const int passes = ceil_div(layout.strips, p.sm_count * most);
  const int share = ceil_div(layout.strips, p.sm_count * passes);
  tile.strips = std::min(most, round_up(share, unit));
  tile.blocks = std::min(p.sm_count, ceil_div(layout.strips, tile.strips));
  const int sums = tile.strips * split.splits * std::min(tile.rows, kW4a16SumRows) *
                   kW4a16SumPitch * static_cast<int>(sizeof(float));
  // A stage has two blocks where two such stages find room: passing a stage between producer and
  // consumers costs about as much as a block's products.
  tile.depth = 2;
  int stage = w4a16_stage_bytes(tile, split.splits, layout.block_bytes);
  if (split.blocks == 1 || 2 * stage + sums > budget) {
    tile.depth = 1;
    stage = w4a16_stage_bytes(tile, split.splits, layout.block_bytes);
  }
  tile.rounds = ceil_div(split.blocks, tile.depth);
  tile.stages = std::clamp((budget - sums) / stage, 2, std::clamp(tile.rounds, 2, 16));
  tile.shared_bytes = tile.stages * stage + sums;
  return tile;
}

/// Launches the product of up to most_w4a16_skinny_rows rows, for compute capability 9.0 exactly.
/// It is asynchronous on `stream`, allocates nothing and may be captured into a graph; the rules
/// are those of launch_gemm_sm90. Throws RuntimeError.
void launch_gemm_w4a16_skinny(const GemmParams& params, const KernelStream& stream);
/// Launches the product of any number of rows, by wgmma, by the rules of launch_gemm_w4a16_skinny.
void launch_gemm_w4a16_many(const GemmParams& params, const KernelStream& stream);
/// Launches the product of any number of rows on compute capability 8.0 and later, by the rules of
/// launch_gemm_w4a16_skinny; no gate, no rotation.
void launch_gemm_w4a16_portable(const GemmParams& params, const KernelStream& stream);

}  // namespace packhorse::cuda
