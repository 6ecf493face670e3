// The float16 Hopper GEMMs with and without a residual, compiled by themselves to save time.
#include "cuda/gemm/sm90/tiles.h"

PACKHORSE_INSTANTIATE_GEMM(cutlass::half_t, kPlain);
PACKHORSE_INSTANTIATE_GEMM(cutlass::half_t, kResidual);
