// The host side of the products of gemm_clusters.h: their tensor maps and their launch.
#pragma once

#include "cuda/check.h"
#include "cuda/gemm/gemm_clusters_kernel.cuh"
#include "cuda/tensor_map_blocks.h"

namespace packhorse::cuda {

template <class T, int kColumns>
void launch_gemm_clusters_kernel(const GemmParams& p, const GemmClusterTile& tile,
                                 cudaStream_t stream) {
  // A map of a matrix [rows, k] whose last dimensions count the parts of a sum over k and, in a
  // part, blocks of 64 elements. Those past the end of a part are zeros, which nobody multiplies.
  const auto blocks = static_cast<cuuint64_t>(p.k / kSumUnit / tile.parts);
  const auto map = [&](const void* data, int32_t rows, int64_t stride, int box_rows) {
    return tensor_map<4>(
        data, p.dtype,
        {64, static_cast<cuuint64_t>(rows), blocks, static_cast<cuuint64_t>(tile.parts)},
        {static_cast<cuuint64_t>(stride) * 2, 128, blocks * 128},
        {64, static_cast<cuuint32_t>(box_rows), static_cast<cuuint32_t>(tile.boxes), 1});
  };
  GemmClusterArgs args{};
  args.weight = map(p.weight, p.n, p.k, tile.features);
  args.x = map(p.a, p.rows, p.lda, tile.row_box);
  args.bias = p.bias;
  args.residual = p.residual;
  args.ldr = p.ldr;
  args.out = p.out;
  args.ldo = p.ldo;
  args.row_count = p.row_count;
  args.rows = p.rows;
  args.n = p.n;
  args.boxes = static_cast<int32_t>(blocks);
  args.tile = tile;
  args.activation = p.activation;
  args.rotation = p.rotation;
  auto* kernel = gemm_clusters_kernel<T, kColumns>;
  allow_most_shared_memory(kernel);
  launch_clusters(static_cast<unsigned>(tile.parts), kernel,
                  dim3(static_cast<unsigned>(tile.clusters * tile.parts)), kClusterThreads,
                  static_cast<size_t>(tile.shared_bytes), stream, args);
}

/// The closed list of kernels of one dtype.
template <class T>
void launch_gemm_clusters_dtype(const GemmParams& p, const GemmClusterTile& tile,
                                cudaStream_t stream) {
  if (tile.columns == 32) return launch_gemm_clusters_kernel<T, 32>(p, tile, stream);
  if (tile.columns == 64) return launch_gemm_clusters_kernel<T, 64>(p, tile, stream);
  launch_gemm_clusters_kernel<T, 128>(p, tile, stream);
}

}  // namespace packhorse::cuda
