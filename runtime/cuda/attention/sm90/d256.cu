// The Hopper attention kernels of head tile 256 (attention/sm90/kernel.cuh), compiled by themselves
// to save time.
#include "cuda/attention/sm90/dispatch.h"

#ifndef PACKHORSE_CUDA_REDUCED
PACKHORSE_INSTANTIATE_ATTENTION(256, false);
#endif
