// The choice of a Hopper GEMM kernel: dtype and epilogue here, the tile in gemm/sm90/tiles.h.
#include <cutlass/numeric_types.h>

#include "cuda/gemm/sm90/traits.cuh"

namespace packhorse::cuda {

template <class Element, GemmEpilogue epilogue>  // defined in gemm/sm90/tiles.h
void launch_gemm_tile(const GemmParams& p, const GemmConfig& config, const KernelStream& stream);
template <class Element, GemmEpilogue epilogue>
void launch_gemm_split_k_tile(const GemmParams& p, const GemmConfig& config,
                              const KernelStream& stream);

namespace {

template <class Element>
void launch_dtype(const GemmParams& p, const GemmConfig& config, const KernelStream& stream) {
  const auto launch = [&]<GemmEpilogue epilogue>() {
    p.parts > 1 ? launch_gemm_split_k_tile<Element, epilogue>(p, config, stream)
                : launch_gemm_tile<Element, epilogue>(p, config, stream);
  };
  if (p.gated) return launch.template operator()<GemmEpilogue::kGated>();
  if (p.rotation.positions != nullptr) return launch.template operator()<GemmEpilogue::kRotated>();
  p.residual != nullptr ? launch.template operator()<GemmEpilogue::kResidual>()
                        : launch.template operator()<GemmEpilogue::kPlain>();
}

}  // namespace

void launch_gemm_sm90(const GemmParams& params, const GemmConfig& config,
                      const KernelStream& stream) {
  if (params.rows == 0) return;
  params.dtype == DType::kFloat16 ? launch_dtype<cutlass::half_t>(params, config, stream)
                                  : launch_dtype<cutlass::bfloat16_t>(params, config, stream);
}

void launch_gemm_sm90(const GemmParams& params, const KernelStream& stream) {
  launch_gemm_sm90(params, select_gemm(shape_of(params), params.sm_count), stream);
}

}  // namespace packhorse::cuda
