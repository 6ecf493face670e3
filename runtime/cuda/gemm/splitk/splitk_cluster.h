// Dense layers whose sums have several parts (gemm/split_k.h), on Hopper: a cluster of blocks
// computes the parts of a tile side by side, for 17 to 64 rows, and for more where that was
// measured to be faster. This is the host interface.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>

#include "cuda/gemm/gemm.h"
#include "cuda/gemm/skinny/tile.h"
#include "cuda/gemm/splitk/tile.h"

namespace packhorse::cuda {

/// Number of clusters of a given number of blocks that run at once. The driver is asked once for
/// each number, and its answer for the device of that call is taken for all devices: a tile is only
/// slower where another one has fewer. Throws RuntimeError.
ClustersAtOnce clusters_at_once(int blocks, const DeviceCaps& caps);

/// Returns the tile with which launch_gemm_splitk_cluster computes a layer that launch_gemm_skinny
/// does not; none if launch_gemm_sm90 is predicted to be as fast. With up to 64 rows, a layer with
/// many more output than input features, such as one with a gate, has short parts and tiles enough
/// for all SMs, so that the kernels that form one part after the other are as fast or faster.
/// Throws RuntimeError.
std::optional<GemmSplitkClusterTile> cluster_tile_of(const GemmParams& params,
                                                     const DeviceCaps& caps);

/// Launches the product with such a tile. It is asynchronous on `stream`, allocates nothing and may
/// be captured into a graph; the rules are those of launch_gemm_sm90, and so are the bits of every
/// row. Throws RuntimeError.
void launch_gemm_splitk_cluster(const GemmParams& params, const GemmSplitkClusterTile& tile,
                                const KernelStream& stream);

}  // namespace packhorse::cuda
