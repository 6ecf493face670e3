// The choice of a Hopper GEMM of e4m3 matrices: dtype of the result and epilogue here, the tile in
// gemm/fp8/tiles.h.
#include <cutlass/numeric_types.h>

#include "cuda/gemm/sm90/traits.cuh"
#include "packhorse/error.h"

namespace packhorse::cuda {

template <class Out, GemmEpilogue epilogue>  // defined in gemm/fp8/tiles.h
void launch_gemm_float8_tile(const GemmParams& p, const GemmConfig& config,
                             const KernelStream& stream);

namespace {

template <class Out>
void launch_halves(const GemmParams& p, const GemmConfig& config, const KernelStream& stream) {
  if (p.gated || p.activation != Activation::kNone) {
    throw InvalidArgument("float8 GEMM: with an activation the result is float8, too");
  }
  if (p.rotation.positions != nullptr) {
    return launch_gemm_float8_tile<Out, GemmEpilogue::kRotated>(p, config, stream);
  }
  p.residual != nullptr ? launch_gemm_float8_tile<Out, GemmEpilogue::kResidual>(p, config, stream)
                        : launch_gemm_float8_tile<Out, GemmEpilogue::kPlain>(p, config, stream);
}

}  // namespace

void launch_gemm_float8(const GemmParams& p, const GemmConfig& config, const KernelStream& stream) {
  if (p.rows == 0) return;
  if (p.float8.out_factor != 0) {
    if (p.residual != nullptr || p.rotation.positions != nullptr) {
      throw InvalidArgument("float8 GEMM: a float8 result has neither residual nor rotation");
    }
    using Out = cutlass::float_e4m3_t;
    return p.gated ? launch_gemm_float8_tile<Out, GemmEpilogue::kGated>(p, config, stream)
                   : launch_gemm_float8_tile<Out, GemmEpilogue::kPlain>(p, config, stream);
  }
  p.dtype == DType::kFloat16 ? launch_halves<cutlass::half_t>(p, config, stream)
                             : launch_halves<cutlass::bfloat16_t>(p, config, stream);
}

void launch_gemm_float8(const GemmParams& params, const KernelStream& stream) {
  GemmShape shape = shape_of(params);
  if (params.gated) shape.least_columns = 64;
  const bool float8_out = params.float8.out_factor != 0;
  launch_gemm_float8(params, select_gemm_float8(shape, float8_out, params.sm_count), stream);
}

}  // namespace packhorse::cuda
