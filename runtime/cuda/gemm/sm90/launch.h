// The host side of one Hopper GEMM kernel: its tensor maps, its grid and its launch.
#pragma once

#include <algorithm>

#include "core/math.h"
#include "cuda/common/launch.cuh"
#include "cuda/common/tensor_map.h"
#include "cuda/device/check.h"
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/sm90/kernel.cuh"

namespace packhorse::cuda {

template <class Traits>
void launch_gemm_kernel(const GemmParams& p, int panel, const KernelStream& stream) {
  const auto operand = [&](const void* data, int rows, int64_t stride, int box_rows) {
    const DType dtype = Traits::kFloat8 ? DType::kFloat8 : p.dtype;
    return matrix_tensor_map(data, dtype, rows, p.k, stride, box_rows, Traits::kBox);
  };
  const auto result = [&](const void* data, int columns, int64_t stride) {
    const DType dtype = Traits::kFloat8Out ? DType::kFloat8 : p.dtype;
    return matrix_tensor_map(data, dtype, p.rows, columns, stride, 16, Traits::kStripe);
  };
  GemmArgsSm90 args{};
  args.a = {operand(p.a, p.rows, p.lda, Traits::kTileM),
            operand(p.a, p.rows, p.lda, sm90::kPartRows)};
  args.weight = operand(p.weight, p.n, p.k, Traits::kTileN / Traits::kCluster);
  if (!Traits::kPooled) args.out = result(p.out, p.n / Traits::kFolds, p.ldo);
  if (Traits::kResidual) args.residual = result(p.residual, p.n, p.ldr);
  args.bias = p.bias;
  args.row_count = p.row_count;
  args.rows = p.rows;
  args.n = p.n;
  args.k = p.k;
  args.parts = p.parts;
  args.tiles_n = cutlass::FastDivmod(ceil_div(p.n, Traits::kTileN));
  args.panel = panel;
  args.activation = p.activation;
  args.rotation = p.rotation;
  args.pool = p.pool;
  args.float8 = p.float8;

  auto* kernel = gemm_sm90_kernel<Traits>;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  Traits::kSharedBytes));
  constexpr int kRows = Traits::kTileM * Traits::kCluster;
  const int tiles = ceil_div(p.rows, kRows) * args.tiles_n.divisor;
  const int clusters = std::min(tiles, p.sm_count / Traits::kCluster);
  launch_clusters(Traits::kCluster, kernel,
                  dim3(static_cast<unsigned>(clusters * Traits::kCluster)), Traits::kThreads,
                  Traits::kSharedBytes, stream, args);
}

}  // namespace packhorse::cuda
