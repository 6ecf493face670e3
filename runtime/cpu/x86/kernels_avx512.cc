#define PACKHORSE_ISA avx512
#define PACKHORSE_KERNELS kAvx512Kernels
#include "cpu/kernels_body.h"
