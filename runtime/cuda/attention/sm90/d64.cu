// The Hopper attention kernels of head tile 64 (attention/sm90/kernel.cuh), compiled by themselves
// to save time.
#include "cuda/attention/sm90/dispatch.h"

PACKHORSE_INSTANTIATE_ATTENTION(64, false);
