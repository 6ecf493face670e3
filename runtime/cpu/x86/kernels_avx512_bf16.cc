#define PACKHORSE_ISA avx512_bf16
#define PACKHORSE_KERNELS kAvx512Bf16Kernels
#include "cpu/isa/kernels_body.inc"
