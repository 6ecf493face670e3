// The Hopper attention kernels of head tile 32 (attention_sm90_kernel.cuh), compiled by themselves
// to save time.
#include "cuda/attention/attention_sm90_dispatch.h"

#ifndef PACKHORSE_CUDA_REDUCED
PACKHORSE_INSTANTIATE_ATTENTION(32, false);
#endif
