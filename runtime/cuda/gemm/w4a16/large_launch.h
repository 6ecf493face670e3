// The host side of the product of many rows with weights in groups: its tensor maps, its tile and
// its launch. The files large_4bit.cu and large_8bit.cu instantiate the kernels.
#pragma once

#include "core/format.h"
#include "core/math.h"
#include "cuda/device/check.h"
#include "cuda/gemm/w4a16/dispatch.h"
#include "cuda/gemm/w4a16/large_kernel.cuh"
#include "cuda/gemm/w4a16/weight_map.h"

namespace packhorse::cuda {

template <int kRows, int kBits, bool kMinima, int kGroupSteps>
void launch_gemm_w4a16_many_kernel(const GemmParams& p, const KernelStream& stream) {
  using Shape = W4a16ManyShape<kRows>;
  GemmW4a16ManyArgs args{};
  args.x = matrix_tensor_map(p.a, DType::kFloat16, p.rows, p.k, p.lda, kRows, 64);
  args.output = w4a16_output(p);
  args.row_count = p.row_count;
  args.rows = p.rows;
  args.layout = w4a16_layout(p.n, p.k, p.groups);
  args.weight = w4a16_weight_map(p.weight, args.layout, Shape::kStrips, 1);
  args.split = w4a16_split(p.n, p.k);
  args.stages = Shape::stages(args.layout.block_bytes);
  const int bytes = args.stages * Shape::stage_bytes(args.layout.block_bytes) + Shape::kSumBytes;
  auto* kernel = gemm_w4a16_many_kernel<kRows, kBits, kMinima, kGroupSteps>;
  allow_most_shared_memory(kernel, stream.caps);
  const int tiles = ceil_div(p.rows, kRows) * ceil_div(args.layout.strips, Shape::kStrips);
  launch_kernel(kernel, dim3(static_cast<unsigned>(std::min(tiles, p.sm_count))), 384,
                static_cast<size_t>(bytes), stream, args);
}

/// Returns whether tiles of 64 rows are expected to take less time than those of 128, by the number
/// of rounds in which each SM has one tile. A tile of 64 rows takes about three fifths of the time,
/// not half, since unpacking its weight serves half as many rows.
inline bool takes_small_tiles(const GemmParams& p) {
  const auto rounds = [&](int rows) {
    const int64_t tiles = int64_t{ceil_div(p.rows, rows)} * ceil_div(p.n, 128);
    return ceil_div(tiles, p.sm_count);
  };
  return 3 * rounds(64) < 5 * rounds(128);
}

/// The complete list of kernels of a number of bits.
template <int kBits>
void launch_gemm_w4a16_many_bits(const GemmParams& p, const KernelStream& stream) {
  dispatch_groups<kBits>(p.groups, [&]<bool kMinima, int kGroupSteps>() {
#ifndef PACKHORSE_CUDA_REDUCED
    if (takes_small_tiles(p)) {
      return launch_gemm_w4a16_many_kernel<64, kBits, kMinima, kGroupSteps>(p, stream);
    }
#endif
    launch_gemm_w4a16_many_kernel<128, kBits, kMinima, kGroupSteps>(p, stream);
  });
}

}  // namespace packhorse::cuda
