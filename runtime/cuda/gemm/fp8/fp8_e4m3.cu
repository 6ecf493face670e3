// Hopper GEMMs of e4m3 matrices with results in e4m3: the first half of a feed-forward block.
#include "cuda/gemm/fp8/tiles.h"

PACKHORSE_INSTANTIATE_GEMM_FLOAT8(cutlass::float_e4m3_t, kPlain);
PACKHORSE_INSTANTIATE_GEMM_FLOAT8(cutlass::float_e4m3_t, kGated);
