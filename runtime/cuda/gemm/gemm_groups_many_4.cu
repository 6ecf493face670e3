#include "cuda/gemm/gemm_groups_few_launch.h"
