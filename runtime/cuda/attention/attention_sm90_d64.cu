// The Hopper attention kernels of head tile 64 (attention_sm90_kernel.cuh), compiled by themselves
// to save time.
#include "cuda/attention/attention_sm90_dispatch.h"

PACKHORSE_INSTANTIATE_ATTENTION(64, false);
