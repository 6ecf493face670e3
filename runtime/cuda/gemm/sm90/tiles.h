// The complete list of Hopper GEMM kernels of one dtype and epilogue. The .cu files of this folder
// instantiate it for a dtype and one or more epilogues each, so that they compile side by side.
#pragma once

#include "cuda/gemm/sm90/launch.h"

namespace packhorse::cuda {

template <class Element, GemmEpilogue epilogue>
void launch_gemm_tile(const GemmParams& p, const GemmConfig& config, const KernelStream& stream) {
  const auto launch = [&]<int m, int n, int k_boxes, bool ping_pong, int cluster = 1>() {
    launch_gemm_kernel<
        GemmTraits<Element, m, n, k_boxes, ping_pong, epilogue, Element, false, cluster>>(
        p, config.panel, stream);
  };
  const auto launch_tall = [&]<int n, bool ping_pong>() {
    config.paired ? launch.template operator()<128, n, 1, ping_pong, 2>()
                  : launch.template operator()<128, n, 1, ping_pong>();
  };
  switch (config.tile) {
#ifndef PACKHORSE_CUDA_REDUCED
    case GemmTile::k64x16:
      if constexpr (epilogue == GemmEpilogue::kGated) {
        break;
      } else {
        return launch.template operator()<64, 16, 2, true>();
      }
    case GemmTile::k64x32:
      return launch.template operator()<64, 32, 2, true>();
    case GemmTile::kHalves64x128:
      return launch.template operator()<64, 128, 1, false>();
    case GemmTile::kHalves128x128:
      return launch_tall.template operator()<128, false>();
    case GemmTile::k128x96:
      return launch.template operator()<128, 96, 1, true>();
    case GemmTile::k128x192:
      return launch_tall.template operator()<192, true>();
#endif
    case GemmTile::k64x64:
      return launch.template operator()<64, 64, 2, true>();
    case GemmTile::k128x128:
      return launch_tall.template operator()<128, true>();
    default:
      break;
  }
  const GemmTileCost& cost = cost_of(config.tile);
  throw RuntimeError(concat("this build has no GEMM kernel with tile ", cost.m, "x", cost.n));
}

/// Launches the kernel of a tile that forms sums in parts. A stage never holds elements of two
/// parts.
template <class Element, GemmEpilogue epilogue>
void launch_gemm_split_k_tile(const GemmParams& p, const GemmConfig& config,
                              const KernelStream& stream) {
  const auto launch = [&]<int m, int n, int k_boxes, bool ping_pong, int cluster = 1>() {
    launch_gemm_kernel<
        GemmTraits<Element, m, n, k_boxes, ping_pong, epilogue, Element, true, cluster>>(
        p, config.panel, stream);
  };
  switch (config.tile) {
#ifndef PACKHORSE_CUDA_REDUCED
    case GemmTile::k64x16:
      if constexpr (epilogue == GemmEpilogue::kGated) {
        break;
      } else {
        return launch.template operator()<64, 16, 1, true>();
      }
    case GemmTile::k64x32:
      return launch.template operator()<64, 32, 1, true>();
    case GemmTile::kHalves64x128:
      return launch.template operator()<64, 128, 1, false>();
#endif
    case GemmTile::k64x64:
      return launch.template operator()<64, 64, 1, true>();
    case GemmTile::kHalves128x128:
      return config.paired ? launch.template operator()<128, 128, 1, false, 2>()
                           : launch.template operator()<128, 128, 1, false>();
    default:
      break;
  }
  const GemmTileCost& cost = cost_of(config.tile);
  throw RuntimeError(concat("this build has no GEMM kernel with tile ", cost.m, "x", cost.n,
                            " that forms sums in parts"));
}

}  // namespace packhorse::cuda

#define PACKHORSE_INSTANTIATE_GEMM(element, epilogue)                                  \
  template void                                                                        \
  packhorse::cuda::launch_gemm_tile<element, packhorse::cuda::GemmEpilogue::epilogue>( \
      const packhorse::cuda::GemmParams&, const packhorse::cuda::GemmConfig&, const KernelStream&)

#define PACKHORSE_INSTANTIATE_GEMM_PARTS(element, epilogue)                                    \
  template void                                                                                \
  packhorse::cuda::launch_gemm_split_k_tile<element, packhorse::cuda::GemmEpilogue::epilogue>( \
      const packhorse::cuda::GemmParams&, const packhorse::cuda::GemmConfig&, const KernelStream&)
