// The host side of the product of few rows: its tensor maps, its tile and its launch.
#pragma once

#include "cuda/common/tensor_map.h"
#include "cuda/common/tensor_map_blocks.h"
#include "cuda/device/check.h"
#include "cuda/gemm/skinny/kernel.cuh"

namespace packhorse::cuda {

/// Returns a map of a weight whose rows alternate between kGateBlock of a gate and kGateBlock that
/// it gates. For each kGateBlock columns of the output a box has eight rows of the gate, the eight
/// that these gate, and the other eight of both, so that both operands of a gate are in the
/// registers of one lane.
inline CUtensorMap gated_tensor_map(const GemmParams& p, int features) {
  const auto k = static_cast<cuuint64_t>(p.k);
  const cuuint64_t row = k * 2;
  const cuuint64_t extents[5] = {k, 8, 2, 2, static_cast<cuuint64_t>(p.n / (2 * kGateBlock))};
  const cuuint64_t strides[4] = {row, kGateBlock * row, 8 * row, 2 * kGateBlock * row};
  const cuuint32_t box[5] = {64, 8, 2, 2, static_cast<cuuint32_t>(features / (2 * kGateBlock))};
  return tensor_map(p.weight, p.dtype, extents, strides, box);
}

template <class T, int kBoxes, int kRowBlocks, bool kGated>
void launch_gemm_skinny_kernel(const GemmParams& p, const GemmSkinnyTile& tile,
                               const KernelStream& stream) {
  GemmSkinnyArgs args{};
  args.tile = tile;
  // Returns a map whose boxes hold a whole stage, all parts of it.
  const auto at_once = [&](const void* data, int32_t rows, int64_t stride, int32_t box_rows) {
    return split_k_tensor_map(data, p.dtype, rows, p.k, stride, tile.parts,
                              {box_rows, tile.boxes, tile.parts});
  };
  args.weight = kGated ? gated_tensor_map(p, tile.features)
                : tile.weight_at_once
                    ? at_once(p.weight, p.n, p.k, tile.features)
                    : matrix_tensor_map(p.weight, p.dtype, p.n, p.k, p.k, tile.features, 64);
  args.x = tile.rows_at_once ? at_once(p.a, p.rows, p.lda, kRowBlocks * kSkinnyRows)
                             : matrix_tensor_map(p.a, p.dtype, p.rows, p.k, p.lda, p.rows, 64);
  args.bias = p.bias;
  args.residual = p.residual;
  args.ldr = p.ldr;
  args.out = p.out;
  args.ldo = p.ldo;
  args.row_count = p.row_count;
  args.rows = p.rows;
  args.n = p.n;
  args.k = p.k;
  args.activation = p.activation;
  args.rotation = p.rotation;
  auto* kernel = gemm_skinny_kernel<T, kBoxes, kRowBlocks, kGated>;
  allow_most_shared_memory(kernel, stream.caps);
  const auto threads = static_cast<unsigned>(tile.warps() * tile.parts + 2) * 32;
  launch_kernel(kernel, dim3(static_cast<unsigned>(args.tile.blocks)), threads,
                static_cast<size_t>(args.tile.shared_bytes), stream, args);
}

/// The complete list of kernels of one dtype.
template <class T>
void launch_gemm_skinny_dtype(const GemmParams& p, const KernelStream& stream) {
  const auto launch = [&]<bool kGated>() {
    const GemmSkinnyTile tile = skinny_tile(p.rows, p.n, p.k, p.parts, kGated, p.sm_count);
    const auto boxes = [&]<int kRowBlocks>() {
      if (tile.boxes == 4) {
        return launch_gemm_skinny_kernel<T, 4, kRowBlocks, kGated>(p, tile, stream);
      }
      if (tile.boxes == 2) {
        return launch_gemm_skinny_kernel<T, 2, kRowBlocks, kGated>(p, tile, stream);
      }
      launch_gemm_skinny_kernel<T, 1, kRowBlocks, kGated>(p, tile, stream);
    };
    tile.row_blocks == 1 ? boxes.template operator()<1>() : boxes.template operator()<2>();
  };
  p.gated ? launch.template operator()<true>() : launch.template operator()<false>();
}

}  // namespace packhorse::cuda
