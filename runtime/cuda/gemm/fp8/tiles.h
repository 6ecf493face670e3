// The complete list of Hopper GEMM kernels of e4m3 matrices with one dtype of results and one
// epilogue. The files fp8_*.cu instantiate it.
#pragma once

#include "cuda/gemm/sm90/launch.h"

namespace packhorse::cuda {

/// Launches the kernel of config.tile. A tile spans at least 32 rows of the weight where the result
/// is e4m3, and 64 where it is gated, too: stored boxes have rows of 32 bytes or more.
template <class Out, GemmEpilogue epilogue>
void launch_gemm_float8_tile(const GemmParams& p, const GemmConfig& config,
                             const KernelStream& stream) {
  [[maybe_unused]] constexpr int kLeast = sizeof(Out) == 2                   ? 16
                                          : epilogue == GemmEpilogue::kGated ? 64
                                                                             : 32;
  const auto launch = [&]<int m, int n, int k_boxes>() {
    using Traits = GemmTraits<cutlass::float_e4m3_t, m, n, k_boxes, true, epilogue, Out>;
    launch_gemm_kernel<Traits>(p, config.panel, stream);
  };
  switch (config.tile) {
#ifndef PACKHORSE_CUDA_REDUCED
    case GemmTile::k64x16:
      if constexpr (kLeast > 16)
        break;
      else
        return launch.template operator()<64, 16, 2>();
    case GemmTile::k64x32:
      if constexpr (kLeast > 32)
        break;
      else
        return launch.template operator()<64, 32, 2>();
#endif
    case GemmTile::k64x64:
      return launch.template operator()<64, 64, 2>();
    case GemmTile::k128x128:
      return launch.template operator()<128, 128, 1>();
    default:
      break;
  }
  const GemmTileCost& cost = cost_of(config.tile);
  throw RuntimeError(concat("this build has no float8 GEMM with tile ", cost.m, "x", cost.n));
}

}  // namespace packhorse::cuda

#define PACKHORSE_INSTANTIATE_GEMM_FLOAT8(out, epilogue)                                  \
  template void                                                                           \
  packhorse::cuda::launch_gemm_float8_tile<out, packhorse::cuda::GemmEpilogue::epilogue>( \
      const packhorse::cuda::GemmParams&, const packhorse::cuda::GemmConfig&, const KernelStream&)
