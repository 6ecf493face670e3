// Hopper attention kernels of head tile 64.
#include "cuda/attention/attention_sm90_dispatch.h"

PACKHORSE_INSTANTIATE_ATTENTION(64);
