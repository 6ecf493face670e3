#define PACKHORSE_ISA neon
#define PACKHORSE_KERNELS kNeonKernels
#include "cpu/isa/kernels_body.inc"
