// Definitions that device code finds besides the headers of CUDA when the host compiles it:
// included ahead of every translated source. The headers of CUDA come first, and see a host
// compiler; the code after them sees device code of compute capability 9.0a.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime_api.h>
#include <vector_functions.h>

#include <cassert>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda/std/cassert>
#include <cuda/std/cstddef>
#include <cuda/std/cstdint>
#include <cuda/std/limits>
#include <cuda/std/tuple>
#include <cuda/std/type_traits>
#include <cuda/std/utility>

#include "emulator/asm.h"
#include "emulator/intrinsics.h"
#include "emulator/launch.h"

#undef __launch_bounds__
#undef __grid_constant__
#define __launch_bounds__(...)
#define __grid_constant__
#define __NVCC__ 1
#define __CUDA_ARCH__ 900
#define __CUDA_ARCH_FEAT_SM90_ALL 1
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#ifndef PACKHORSE_CUDA_SM90
#define PACKHORSE_CUDA_SM90
#endif
#define __noinline__ __attribute__((noinline))

using std::isfinite;
using std::isinf;
using std::isnan;
using std::signbit;
