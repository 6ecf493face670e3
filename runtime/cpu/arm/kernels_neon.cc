#define PACKHORSE_ISA neon
#define PACKHORSE_KERNELS kNeonKernels
#include "cpu/kernels_body.h"
