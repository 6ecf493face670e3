#define PACKHORSE_ISA neon_dot
#define PACKHORSE_KERNELS kNeonDotKernels
#include "cpu/isa/kernels_body.inc"
