// Hopper GEMMs of e4m3 matrices with results in bfloat16.
#include "cuda/gemm/gemm_sm90_float8_tiles.h"

PACKHORSE_INSTANTIATE_GEMM_FLOAT8(cutlass::bfloat16_t, kPlain);
PACKHORSE_INSTANTIATE_GEMM_FLOAT8(cutlass::bfloat16_t, kResidual);
PACKHORSE_INSTANTIATE_GEMM_FLOAT8(cutlass::bfloat16_t, kRotated);
