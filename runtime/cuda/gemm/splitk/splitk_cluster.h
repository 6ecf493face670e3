// Dense layers for 17 to 64 rows whose sums have several parts (gemm/split_k.h), on Hopper: a
// cluster of blocks computes the parts of a tile side by side. This is the host interface.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/gemm/gemm.h"
#include "cuda/gemm/skinny/tile.h"
#include "cuda/gemm/splitk/tile.h"

namespace packhorse::cuda {

/// Returns whether launch_gemm_splitk_cluster computes a layer that launch_gemm_skinny does not. A
/// layer with many more output than input features, such as one with a gate, has short parts and
/// tiles enough for all SMs, so that the kernels that form one part after the other are as fast or
/// faster.
inline bool is_clustered(const GemmParams& params) {
  return params.parts > 1 && params.n < 2 * params.k && params.rows > kMostSkinnyRows &&
         params.rows <= kMostClusterRows && params.pool.out == nullptr && !params.gated &&
         (params.rotation.positions == nullptr || params.residual == nullptr);
}

/// Number of clusters of `parts` blocks that run at once. The driver is asked once for each number
/// of parts, and its answer for the device of that call is taken for all devices: a tile is only
/// slower where another one has fewer. Throws RuntimeError.
ClustersAtOnce clusters_at_once(int parts, const DeviceCaps& caps);

/// Launches the product. It is asynchronous on `stream`, allocates nothing and may be captured into
/// a graph; the rules are those of launch_gemm_sm90, and so are the bits of every row. Throws
/// RuntimeError.
void launch_gemm_splitk_cluster(const GemmParams& params, const KernelStream& stream);
/// Launches the product with a tile of the caller's choice, for tuning and tests.
void launch_gemm_splitk_cluster(const GemmParams& params, const GemmSplitkClusterTile& tile,
                                const KernelStream& stream);

}  // namespace packhorse::cuda
