// The complete list of int8 GEMM kernels, and the choice between them.
#include "cuda/gemm/int8/int8.h"
#include "cuda/gemm/int8/kernel.cuh"

namespace packhorse::cuda {
namespace {

template <class Element, bool has_residual>
void launch_tile(const LinearArgs& args, const RowBytes& rows, const KernelStream& stream) {
  switch (select_gemm_sm80(args.x.rows(), args.weight.out_features, stream.caps.sm_count)) {
    case GemmTileSm80::k64x64:
      return GemmInt8<Element, 64, 64, has_residual>::launch(args, rows, stream);
    case GemmTileSm80::k128x128:
      return GemmInt8<Element, 128, 128, has_residual>::launch(args, rows, stream);
  }
}

template <class Element>
void launch_dtype(const LinearArgs& args, const RowBytes& rows, const KernelStream& stream) {
  args.residual ? launch_tile<Element, true>(args, rows, stream)
                : launch_tile<Element, false>(args, rows, stream);
}

}  // namespace

void launch_gemm_int8(const LinearArgs& args, const RowBytes& rows, const KernelStream& stream) {
  if (args.x.rows() == 0) return;
  args.out.dtype == DType::kFloat16 ? launch_dtype<cutlass::half_t>(args, rows, stream)
                                    : launch_dtype<cutlass::bfloat16_t>(args, rows, stream);
}

}  // namespace packhorse::cuda
