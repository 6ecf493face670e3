// Tensor map of a weight that is quantised in groups (gemm/w4a16/layout.h).
#pragma once

#include "cuda/common/tensor_map_blocks.h"
#include "cuda/gemm/w4a16/layout.h"

namespace packhorse::cuda {

/// Returns the map of a packed weight, whose bytes are copied unchanged. Its dimensions are
/// elements of 8 bytes, of which a box has 256 at most; one or two rows of them, which make a
/// block; the blocks of a strip; and the strips. A box has `strips` strips of `depth` neighbouring
/// blocks each.
inline CUtensorMap w4a16_weight_map(const void* weight, const W4a16Layout& layout, int strips,
                                    int depth) {
  const auto rows = static_cast<cuuint32_t>(layout.block_bytes <= 256 * 8 ? 1 : 2);
  const auto bytes = static_cast<cuuint64_t>(layout.block_bytes);
  const auto blocks = static_cast<cuuint64_t>(layout.blocks);
  const auto row_bytes = static_cast<cuuint32_t>(layout.block_bytes) / rows;
  return tensor_map<4>(
      weight, CU_TENSOR_MAP_DATA_TYPE_INT64, CU_TENSOR_MAP_SWIZZLE_NONE,
      {row_bytes / 8, rows, blocks, static_cast<cuuint64_t>(layout.strips)},
      {row_bytes, bytes, blocks * bytes},
      {row_bytes / 8, rows, static_cast<cuuint32_t>(depth), static_cast<cuuint32_t>(strips)});
}

}  // namespace packhorse::cuda
