// Hopper attention kernels of head tile 128.
#include "cuda/attention_sm90_dispatch.h"

PACKHORSE_INSTANTIATE_ATTENTION(128);
