// The host side of the products of gemm/splitk/splitk_cluster.h: their tensor maps and their
// launch.
#pragma once

#include "cuda/common/tensor_map_blocks.h"
#include "cuda/device/check.h"
#include "cuda/gemm/splitk/kernel.cuh"

namespace packhorse::cuda {

template <class T, int kColumns, int kGroups, int kOwnParts>
void launch_gemm_splitk_cluster_kernel(const GemmParams& p, const GemmSplitkClusterTile& tile,
                                       const KernelStream& stream) {
  GemmSplitkClusterArgs args{};
  args.weight = split_k_tensor_map(p.weight, p.dtype, p.n, p.k, p.k, tile.parts,
                                   {tile.features, tile.boxes, 1});
  args.x = split_k_tensor_map(p.a, p.dtype, p.rows, p.k, p.lda, tile.parts,
                              {tile.row_box, tile.boxes, 1});
  args.x_part = split_k_tensor_map(p.a, p.dtype, p.rows, p.k, p.lda, tile.parts, {kRowsPart, 1, 1});
  args.bias = p.bias;
  args.residual = p.residual;
  args.ldr = p.ldr;
  args.out = p.out;
  args.ldo = p.ldo;
  args.row_count = p.row_count;
  args.rows = p.rows;
  args.n = p.n;
  args.boxes = static_cast<int32_t>(p.k / kSumUnit / tile.parts);
  args.tile = tile;
  args.activation = p.activation;
  args.rotation = p.rotation;
  auto* kernel = gemm_splitk_cluster_kernel<T, kColumns, kGroups, kOwnParts>;
  allow_most_shared_memory(kernel, stream.caps);
  launch_clusters(static_cast<unsigned>(tile.blocks), kernel,
                  dim3(static_cast<unsigned>(tile.clusters * tile.blocks)),
                  cluster_threads(kGroups), static_cast<size_t>(tile.shared_bytes), stream, args);
}

/// The complete list of kernels of one dtype.
template <class T>
void launch_gemm_splitk_cluster_dtype(const GemmParams& p, const GemmSplitkClusterTile& tile,
                                      const KernelStream& stream) {
  const auto launch = [&]<int columns, int groups, int own_parts = 1>() {
    launch_gemm_splitk_cluster_kernel<T, columns, groups, own_parts>(p, tile, stream);
  };
  if (tile.blocks < tile.parts) return launch.template operator()<128, 2, 2>();
  if (tile.groups == 2) {
    return tile.columns == 64 ? launch.template operator()<64, 2>()
                              : launch.template operator()<128, 2>();
  }
  if (tile.columns == 32) return launch.template operator()<32, 1>();
  tile.columns == 64 ? launch.template operator()<64, 1>() : launch.template operator()<128, 1>();
}

}  // namespace packhorse::cuda
