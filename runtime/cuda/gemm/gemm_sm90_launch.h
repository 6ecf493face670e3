// The host side of one Hopper GEMM kernel: its tensor maps, its grid and its launch.
#pragma once

#include <algorithm>

#include "cuda/check.h"
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/gemm_sm90_kernel.cuh"
#include "cuda/launch.cuh"
#include "cuda/tensor_map.h"

namespace packhorse::cuda {

template <class Traits>
void launch_gemm_kernel(const GemmParams& p, int panel, cudaStream_t stream) {
  const auto map = [&](const void* data, int rows, int columns, int64_t stride, int box_rows,
                       int box_columns) {
    return matrix_tensor_map(data, p.dtype, rows, columns, stride, box_rows, box_columns);
  };
  GemmArgsSm90 args{};
  args.a = {map(p.a, p.rows, p.k, p.lda, Traits::kTileM, 64),
            map(p.a, p.rows, p.k, p.lda, sm90::kPartRows, 64)};
  args.weight = map(p.weight, p.n, p.k, p.k, Traits::kTileN, 64);
  if (!Traits::kPooled) {
    args.out = map(p.out, p.rows, p.n / Traits::kFolds, p.ldo, 16, Traits::kStripe);
  }
  if (Traits::kResidual) {
    args.residual = map(p.residual, p.rows, p.n, p.ldr, 16, Traits::kStripe);
  }
  args.bias = p.bias;
  args.row_count = p.row_count;
  args.rows = p.rows;
  args.n = p.n;
  args.k = p.k;
  args.tiles_n = cutlass::FastDivmod((p.n + Traits::kTileN - 1) / Traits::kTileN);
  args.panel = panel;
  args.activation = p.activation;
  args.rotation = p.rotation;
  args.pool = p.pool;

  auto* kernel = gemm_sm90_kernel<Traits>;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  Traits::kSharedBytes));
  const int tiles = (p.rows + Traits::kTileM - 1) / Traits::kTileM * args.tiles_n.divisor;
  launch_kernel(kernel, dim3(static_cast<unsigned>(std::min(tiles, p.sm_count))), Traits::kThreads,
                Traits::kSharedBytes, stream, args);
}

}  // namespace packhorse::cuda
