// Hopper's dense layers of one dtype, with tiles of 64 x 64 and 128 x 128.
#pragma once

#include "cuda/gemm/gemm.h"

namespace packhorse::cuda {

/// Launches a layer of float16 operands, with or without a residual; with params.parts other than
/// one, only for tiles of 64 x 64 and of 128 x 128 by halves.
void launch_half_gemm(const GemmParams& params, GemmTile tile);
/// Launches a layer of e4m3 operands; the result is float16.
void launch_float8_gemm(const GemmParams& params, GemmTile tile);

}  // namespace packhorse::cuda
