#define PACKHORSE_ISA avx512
#define PACKHORSE_KERNELS kAvx512Kernels
#include "cpu/isa/kernels_body.inc"
