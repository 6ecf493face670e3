#define PACKHORSE_ISA sse41
#define PACKHORSE_KERNELS kSse41Kernels
#include "cpu/isa/kernels_body.inc"
