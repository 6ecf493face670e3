// The bfloat16 Hopper GEMMs that form sums in parts, compiled by themselves to save time.
#include "cuda/gemm/sm90/tiles.h"

PACKHORSE_INSTANTIATE_GEMM_PARTS(cutlass::bfloat16_t, kPlain);
PACKHORSE_INSTANTIATE_GEMM_PARTS(cutlass::bfloat16_t, kResidual);
PACKHORSE_INSTANTIATE_GEMM_PARTS(cutlass::bfloat16_t, kGated);
PACKHORSE_INSTANTIATE_GEMM_PARTS(cutlass::bfloat16_t, kRotated);
