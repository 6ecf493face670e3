#define PACKHORSE_ISA avx2
#define PACKHORSE_KERNELS kAvx2Kernels
#include "cpu/isa/kernels_body.inc"
