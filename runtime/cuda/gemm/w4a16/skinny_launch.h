// The host side of the product of few rows with weights in groups: its tensor maps, its tile and
// its launch. The files skinny_4bit.cu and skinny_8bit.cu instantiate the kernels, one for each
// number of bits, so that they compile side by side.
#pragma once

#include "core/format.h"
#include "cuda/device/check.h"
#include "cuda/gemm/w4a16/dispatch.h"
#include "cuda/gemm/w4a16/skinny_kernel.cuh"
#include "cuda/gemm/w4a16/weight_map.h"

namespace packhorse::cuda {

template <int kRows, int kBits, bool kMinima, int kGroupSteps>
void launch_gemm_w4a16_skinny_kernel(const GemmParams& p, const W4a16SkinnyTile& tile,
                                     const KernelStream& stream) {
  GemmW4a16SkinnyArgs args{};
  args.rows_at_once = p.k % 64 == 0;
  args.x = args.rows_at_once
               ? tensor_map<3>(
                     p.a, DType::kFloat16,
                     {64, static_cast<cuuint64_t>(p.rows), static_cast<cuuint64_t>(p.k / 64)},
                     {static_cast<cuuint64_t>(p.lda) * 2, 128},
                     {64, static_cast<cuuint32_t>(kRows), static_cast<cuuint32_t>(2 * tile.depth)})
               : matrix_tensor_map(p.a, DType::kFloat16, p.rows, p.k, p.lda, kRows, 64);
  args.output = w4a16_output(p);
  args.row_count = p.row_count;
  args.rows = p.rows;
  args.layout = w4a16_layout(p.n, p.k, p.groups);
  args.split = w4a16_split(p.n, p.k);
  args.tile = tile;
  args.weight = w4a16_weight_map(p.weight, args.layout, tile.strips, tile.depth);
  auto* kernel = gemm_w4a16_skinny_kernel<kRows, kBits, kMinima, kGroupSteps>;
  allow_most_shared_memory(kernel, stream.caps);
  const auto threads = static_cast<unsigned>(tile.strips * args.split.splits + 2) * 32;
  launch_kernel(kernel, dim3(static_cast<unsigned>(tile.blocks)), threads,
                static_cast<size_t>(tile.shared_bytes), stream, args);
}

/// The complete list of kernels of a number of bits.
template <int kBits>
void launch_gemm_w4a16_skinny_bits(const GemmParams& p, const KernelStream& stream) {
  const W4a16SkinnyTile tile = w4a16_skinny_tile(p);
  dispatch_groups<kBits>(p.groups, [&]<bool kMinima, int kGroupSteps>() {
    switch (tile.rows) {
      case 8:
        return launch_gemm_w4a16_skinny_kernel<8, kBits, kMinima, kGroupSteps>(p, tile, stream);
#ifndef PACKHORSE_CUDA_REDUCED
      case 16:
        return launch_gemm_w4a16_skinny_kernel<16, kBits, kMinima, kGroupSteps>(p, tile, stream);
#endif
      case 32:
        return launch_gemm_w4a16_skinny_kernel<32, kBits, kMinima, kGroupSteps>(p, tile, stream);
      default:
        throw RuntimeError(concat("this build has no GEMM kernel of ", kBits, "-bit groups for ",
                                  tile.rows, " rows"));
    }
  });
}

}  // namespace packhorse::cuda
