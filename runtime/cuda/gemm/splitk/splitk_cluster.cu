// Launches of dense layers whose parts of a sum are computed by the blocks of a cluster.
#include <atomic>

#include "cuda/gemm/splitk/launch.h"

namespace packhorse::cuda {
namespace {

/// Returns how many clusters run at once (cudaOccupancyMaxActiveClusters), at least 1.
int most_clusters(int blocks, int64_t shared_bytes, const DeviceCaps& caps) {
  auto* kernel = gemm_splitk_cluster_kernel<__half, 64, 1, 1>;
  allow_most_shared_memory(kernel, caps);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(cluster_threads(1));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.attrs = &cluster;
  config.numAttrs = 1;
  int clusters = 0;
  CUDA_CHECK(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config));
  return std::max(1, clusters);
}

/// Elements of a weight from which blocks form two parts each. Smaller ones come out of the L2
/// cache fast enough for small tiles.
constexpr int64_t kLeastForTwoParts = int64_t{6} << 20;

}  // namespace

ClustersAtOnce clusters_at_once(int blocks, const DeviceCaps& caps) {
  // Threads that get here at the same time store the same numbers.
  static std::atomic<int> alone[kMaxSplitK + 1];
  static std::atomic<int> paired[kMaxSplitK + 1];
  if (alone[blocks] == 0) {
    paired[blocks] = most_clusters(blocks, kPairedSharedBytes, caps);
    alone[blocks] = most_clusters(blocks, kClusterSharedBytes, caps);
  }
  return {alone[blocks], paired[blocks]};
}

std::optional<GemmSplitkClusterTile> cluster_tile_of(const GemmParams& params,
                                                     const DeviceCaps& caps) {
  const int64_t rows = params.rows;
  const int parts = params.parts;
  if (parts == 1 || rows <= kMostSkinnyRows || params.pool.out != nullptr || params.gated ||
      (params.rotation.positions != nullptr && params.residual != nullptr)) {
    return std::nullopt;
  }
  const ClustersAtOnce at_once = clusters_at_once(parts, caps);
  if (rows <= kMostClusterRows) {
    if (params.n >= 2 * params.k) return std::nullopt;
    return few_rows_tile(rows, params.n, params.k, parts, at_once);
  }
  const GemmShape shape = shape_of(params);
  double time = predict(select_gemm(shape, params.sm_count), shape, params.sm_count);
  auto tile = tall_tile(rows, params.n, params.k, parts, parts, at_once.alone, time);
  if (parts % 2 == 0 && parts > 2 && int64_t{params.n} * params.k >= kLeastForTwoParts) {
    const int pairs = clusters_at_once(parts / 2, caps).alone;
    if (const auto half = tall_tile(rows, params.n, params.k, parts, parts / 2, pairs, time)) {
      tile = half;
    }
  }
  return tile;
}

void launch_gemm_splitk_cluster(const GemmParams& params, const GemmSplitkClusterTile& tile,
                                const KernelStream& stream) {
  if (params.rows == 0) return;
  dispatch_dtype(params.dtype,
                 [&]<class T>() { launch_gemm_splitk_cluster_dtype<T>(params, tile, stream); });
}

}  // namespace packhorse::cuda
