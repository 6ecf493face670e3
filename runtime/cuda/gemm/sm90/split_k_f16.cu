// The float16 Hopper GEMMs that form sums in parts, compiled by themselves to save time.
#include "cuda/gemm/sm90/tiles.h"

PACKHORSE_INSTANTIATE_GEMM_PARTS(cutlass::half_t, kPlain);
PACKHORSE_INSTANTIATE_GEMM_PARTS(cutlass::half_t, kResidual);
PACKHORSE_INSTANTIATE_GEMM_PARTS(cutlass::half_t, kGated);
PACKHORSE_INSTANTIATE_GEMM_PARTS(cutlass::half_t, kRotated);
