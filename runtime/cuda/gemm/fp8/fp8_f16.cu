// Hopper GEMMs of e4m3 matrices with results in float16.
#include "cuda/gemm/fp8/tiles.h"

PACKHORSE_INSTANTIATE_GEMM_FLOAT8(cutlass::half_t, kPlain);
PACKHORSE_INSTANTIATE_GEMM_FLOAT8(cutlass::half_t, kResidual);
PACKHORSE_INSTANTIATE_GEMM_FLOAT8(cutlass::half_t, kRotated);
