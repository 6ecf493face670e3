#define PACKHORSE_ISA amx
#define PACKHORSE_KERNELS kAmxKernels
#include "cpu/kernels_body.h"
