// Hopper GEMMs of e4m3 matrices with results in bfloat16.
#include "cuda/gemm/fp8/tiles.h"

PACKHORSE_INSTANTIATE_GEMM_FLOAT8(cutlass::bfloat16_t, kPlain);
PACKHORSE_INSTANTIATE_GEMM_FLOAT8(cutlass::bfloat16_t, kResidual);
PACKHORSE_INSTANTIATE_GEMM_FLOAT8(cutlass::bfloat16_t, kRotated);
