// Instantiations of their own, because those of cuda/gemm/sm90/*.cu are many.
#include "cuda/gemm/fp8/tiles.h"
#include "cuda/gemm/sm90/tiles.h"
#include "emulated_stream.h"
#include "gemm_kernels.h"

namespace packhorse::cuda {

void launch_half_gemm(const GemmParams& params, GemmTile tile) {
  using T = cutlass::half_t;
  const GemmConfig config{.tile = tile, .panel = 1};
  const auto launch = [&]<GemmEpilogue epilogue>() {
    params.parts > 1 ? launch_gemm_split_k_tile<T, epilogue>(params, config, emulated_stream())
                     : launch_gemm_tile<T, epilogue>(params, config, emulated_stream());
  };
  params.residual != nullptr ? launch.template operator()<GemmEpilogue::kResidual>()
                             : launch.template operator()<GemmEpilogue::kPlain>();
}

void launch_float8_gemm(const GemmParams& params, GemmTile tile) {
  const GemmConfig config{.tile = tile, .panel = 1};
  launch_gemm_float8_tile<cutlass::half_t, GemmEpilogue::kPlain>(params, config, emulated_stream());
}

}  // namespace packhorse::cuda
