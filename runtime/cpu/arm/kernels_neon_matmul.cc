#define PACKHORSE_ISA neon_matmul
#define PACKHORSE_KERNELS kNeonMatmulKernels
#include "cpu/kernels_body.h"
