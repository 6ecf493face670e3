// Products whose parts of sums meet in clusters: the closed list of kernels.
#include "cuda/gemm/gemm_clusters_launch.h"

namespace packhorse::cuda {

void launch_gemm_clusters(const GemmParams& params, const GemmClusterTile& tile,
                          cudaStream_t stream) {
  if (params.rows == 0) return;
  dispatch_dtype(params.dtype,
                 [&]<class T>() { launch_gemm_clusters_dtype<T>(params, tile, stream); });
}

void launch_gemm_clusters(const GemmParams& params, cudaStream_t stream) {
  launch_gemm_clusters(
      params,
      cluster_tile(params.rows, params.n, params.k, params.parts, params.gated, params.sm_count),
      stream);
}

}  // namespace packhorse::cuda
