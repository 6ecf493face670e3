#define PACKHORSE_ISA sse41
#define PACKHORSE_KERNELS kSse41Kernels
#include "cpu/kernels_body.h"
