// The complete list of portable GEMM kernels, and the choice between them.
#include "cuda/gemm/sm80/kernel.cuh"

namespace packhorse::cuda {
namespace {

template <class Element, bool has_residual>
void launch_tile(const GemmParams& params, const KernelStream& stream) {
  switch (select_gemm_sm80(params.rows, params.n, params.sm_count)) {
    case GemmTileSm80::k64x64:
      return GemmSm80<Element, 64, 64, has_residual>::launch(params, stream);
    case GemmTileSm80::k128x128:
      return GemmSm80<Element, 128, 128, has_residual>::launch(params, stream);
  }
}

template <class Element>
void launch_dtype(const GemmParams& params, const KernelStream& stream) {
  params.residual != nullptr ? launch_tile<Element, true>(params, stream)
                             : launch_tile<Element, false>(params, stream);
}

}  // namespace

void launch_gemm_sm80(const GemmParams& params, const KernelStream& stream) {
  if (params.rows == 0) return;
  params.dtype == DType::kFloat16 ? launch_dtype<cutlass::half_t>(params, stream)
                                  : launch_dtype<cutlass::bfloat16_t>(params, stream);
}

}  // namespace packhorse::cuda
