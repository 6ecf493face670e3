// Launches of dense layers whose parts of a sum are computed by the blocks of a cluster.
#include <atomic>

#include "cuda/gemm/splitk/launch.h"

namespace packhorse::cuda {
namespace {

/// Returns how many clusters run at once (cudaOccupancyMaxActiveClusters), at least 1.
int most_clusters(int parts, int64_t shared_bytes, const DeviceCaps& caps) {
  auto* kernel = gemm_splitk_cluster_kernel<__half, 64>;
  allow_most_shared_memory(kernel, caps);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(parts), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(parts));
  config.blockDim = dim3(kClusterThreads);
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.attrs = &cluster;
  config.numAttrs = 1;
  int clusters = 0;
  CUDA_CHECK(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config));
  return std::max(1, clusters);
}

}  // namespace

ClustersAtOnce clusters_at_once(int parts, const DeviceCaps& caps) {
  // Threads that get here at the same time store the same numbers.
  static std::atomic<int> alone[kMaxSplitK + 1];
  static std::atomic<int> paired[kMaxSplitK + 1];
  if (alone[parts] == 0) {
    paired[parts] = most_clusters(parts, kPairedSharedBytes, caps);
    alone[parts] = most_clusters(parts, kClusterSharedBytes, caps);
  }
  return {alone[parts], paired[parts]};
}

void launch_gemm_splitk_cluster(const GemmParams& params, const GemmSplitkClusterTile& tile,
                                const KernelStream& stream) {
  if (params.rows == 0) return;
  dispatch_dtype(params.dtype,
                 [&]<class T>() { launch_gemm_splitk_cluster_dtype<T>(params, tile, stream); });
}

void launch_gemm_splitk_cluster(const GemmParams& params, const KernelStream& stream) {
  launch_gemm_splitk_cluster(params,
                             cluster_tile(params.rows, params.n, params.k, params.parts,
                                          clusters_at_once(params.parts, stream.caps)),
                             stream);
}

}  // namespace packhorse::cuda
