#define PACKHORSE_ISA neon_matmul
#define PACKHORSE_KERNELS kNeonMatmulKernels
#include "cpu/isa/kernels_body.inc"
