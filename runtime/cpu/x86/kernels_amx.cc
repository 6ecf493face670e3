#define PACKHORSE_ISA amx
#define PACKHORSE_KERNELS kAmxKernels
#include "cpu/isa/kernels_body.inc"
