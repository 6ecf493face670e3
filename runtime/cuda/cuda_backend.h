// The CUDA backend. It computes in float16 and bfloat16 and needs compute capability 8.0 or later.
#pragma once

#include "ops/backend.h"

namespace packhorse {

/// Returns the number of CUDA devices that the driver shows; 0 where there is no driver, or one
/// that is too old.
int cuda_device_count();

/// Makes the backend for one device. Throws RuntimeError where there is no driver, the driver is
/// too old, the device does not exist (the message lists those that do) or the device is too old.
///
/// Two environment variables are read here. PACKHORSE_GEMM chooses the kernels of dense layers:
/// "sm90" (for compute capability 9.0 exactly, and the default there) or "portable" (for 8.0 and
/// later). PACKHORSE_ATTENTION names the attention algorithm where `attention` is kAuto.
///
/// `urgent`: see BackendOptions.
Backend make_cuda_backend(int device_index, AttentionAlgorithm attention, bool urgent = false);

}  // namespace packhorse
