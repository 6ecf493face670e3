// The CUDA backend: float16 and bfloat16 on compute capability 8.0 and up.
#pragma once

#include "ops/backend.h"

namespace packhorse {

/// CUDA devices that the driver shows; 0 where there is no driver or one too old.
int cuda_device_count();

/// Throws RuntimeError: no driver, one too old, no such device (lists those there are), or a device
/// that is too old.
///
/// The environment variable PACKHORSE_GEMM, read here, chooses the kernels of dense layers: "sm90"
/// (compute capability 9.0 only, and the default there) or "portable" (8.0 and up).
/// PACKHORSE_ATTENTION names the algorithm where `attention` is kAuto.
Backend make_cuda_backend(int device_index, AttentionAlgorithm attention);

}  // namespace packhorse
