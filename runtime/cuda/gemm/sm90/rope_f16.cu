// The float16 Hopper GEMMs that rotate heads, compiled by themselves to save time.
#include "cuda/gemm/sm90/tiles.h"

PACKHORSE_INSTANTIATE_GEMM(cutlass::half_t, kRotated);
