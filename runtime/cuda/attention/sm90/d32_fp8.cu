// The Hopper attention kernels of head tile 32 with results in e4m3, compiled by themselves to save
// time.
#include "cuda/attention/sm90/dispatch.h"

PACKHORSE_INSTANTIATE_ATTENTION(32, true);
