// Hopper attention kernels of head tile 256.
#include "cuda/attention_sm90_dispatch.h"

PACKHORSE_INSTANTIATE_ATTENTION(256);
