// The host side of one Hopper attention kernel: its tensor maps, its grid and its launch.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstdint>

#include "core/format.h"
#include "cuda/attention/attention.h"
#include "cuda/attention/sm90/kernel.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/tensor_map.h"
#include "cuda/device/check.h"
#include "packhorse/error.h"

namespace packhorse::cuda {

/// Returns the ragged tensor map (attention/sm90/kernel.cuh) of packed rows [tokens, heads *
/// head_dim], in boxes of `box_rows` rows by `box_columns` columns of one head. Columns past
/// head_dim read as zeros.
inline CUtensorMap ragged_tensor_map(const void* data, DType dtype, int64_t row_stride, int heads,
                                     int head_dim, int box_rows, int box_columns) {
  constexpr uint64_t kAny = 0x7fff0000;  // an extent that no coordinate reaches
  const uint64_t row_bytes = static_cast<uint64_t>(row_stride) * size_of(dtype);
  const cuuint64_t extents[5] = {static_cast<cuuint64_t>(head_dim), static_cast<cuuint64_t>(heads),
                                 kRaggedRows, kAny, kAny};
  // The last stride takes back the kRaggedRows rows by which x + y is too large: kRaggedRows *
  // (2^34 - row_bytes) + kRaggedRows * row_bytes = 2^64, and addresses wrap there.
  const cuuint64_t strides[4] = {static_cast<cuuint64_t>(head_dim) * size_of(dtype), row_bytes,
                                 row_bytes, (uint64_t{1} << 34) - row_bytes};
  const cuuint32_t box[5] = {static_cast<cuuint32_t>(box_columns), 1,
                             static_cast<cuuint32_t>(box_rows), 1, 1};
  const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
  CUtensorMap map;
  const CUresult result = tensor_map_encoder()(
      &map, map_dtype(dtype), 5, const_cast<void*>(data), extents, strides, box, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE, map_swizzle(static_cast<int>(size_of(dtype)) * box_columns),
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw RuntimeError(concat("cuTensorMapEncodeTiled failed with ", static_cast<int>(result),
                              " for rows of ", heads, " x ", head_dim, " elements, ", row_stride,
                              " apart"));
  }
  return map;
}

/// Fills the kernel's arguments and launches it on as many blocks as run at once, or as there are
/// tiles if these are fewer.
template <class Traits>
void launch_attention_kernel(const AttentionArgs& p, const AttentionLaunch& launch,
                             const KernelStream& stream) {
  const auto map = [&](const TensorView& view, int heads, int rows) {
    return ragged_tensor_map(view.data, view.dtype, view.row_stride, heads, p.head_dim, rows,
                             Traits::kBoxColumns);
  };
  AttentionArgsSm90 args{};
  const auto tile_map = [&](const TensorView& view, int heads, int rows) {
    return sm90::TileMap{map(view, heads, rows), map(view, heads, sm90::kPartRows)};
  };
  args.q = tile_map(p.q, p.num_heads, 64);
  args.k = tile_map(p.k, p.num_kv_heads, Traits::kKvTile);
  args.v = tile_map(p.v, p.num_kv_heads, Traits::kKvTile);
  args.out = Traits::kFloat8Out
                 ? ragged_tensor_map(p.out.data, DType::kFloat8, p.out.row_stride, p.num_heads,
                                     p.head_dim, 64, Traits::kFloat8Columns)
                 : map(p.out, p.num_heads, 64);
  args.out_factor = float8_factor(p);
  args.window = key_window(p.mask);
  args.term = p.term;
  args.next_tile = launch.next_tile;
  args.num_heads = p.num_heads;
  args.q_heads_per_kv_head = p.num_heads / p.num_kv_heads;
  args.scale = p.scale;
  args.descending = p.mask.causal;
  args.batch = {p.queries.cu_seqlens, p.keys.cu_seqlens,
                p.queries.counts,     static_cast<int32_t>(p.queries.num_sequences),
                p.num_heads,          1,
                launch.short_tokens};
  if (p.mask.causal) {
    constexpr int64_t kCacheBytes = 24 << 20;  // bytes of keys and values that stay in the L2 cache
    const int64_t head_bytes = p.keys.max_seqlen * p.head_dim * 4 + 1;
    const int64_t heads = std::max<int64_t>(1, kCacheBytes / head_bytes) * args.q_heads_per_kv_head;
    args.batch.heads_in_group = static_cast<int32_t>(std::min<int64_t>(heads, p.num_heads));
  }

  const int64_t tiles =
      (p.queries.num_tokens / Traits::kTileRows + p.queries.num_sequences) * p.num_heads;
  const int64_t blocks =
      std::min<int64_t>(tiles, int64_t{stream.caps.sm_count} * Traits::kBlocksPerSm);
  if (blocks == 0) return;
  auto* kernel = attention_sm90_kernel<Traits>;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  Traits::kSharedBytes));
  launch_kernel(kernel, dim3(static_cast<unsigned>(blocks)), Traits::kThreads, Traits::kSharedBytes,
                stream, args);
}

}  // namespace packhorse::cuda
