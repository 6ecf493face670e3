// Choices of kernels by environment variables, within what a device can run.
#pragma once

#include <cstdint>

#include "cuda/device/caps.h"
#include "packhorse/attention_algorithm.h"

namespace packhorse::cuda {

enum class GemmKernels : uint8_t { kSm90, kPortable };

/// Returns what the environment variable PACKHORSE_GEMM asks for, and otherwise the best that the
/// device can run. Throws RuntimeError for an unknown name, or for kernels that the device cannot
/// run.
GemmKernels choose_gemm_kernels(const DeviceCaps& caps);

/// Returns `asked`; where that is kAuto, the algorithm that the environment variable
/// PACKHORSE_ATTENTION names, if it is set.
AttentionAlgorithm asked_attention_algorithm(AttentionAlgorithm asked);

}  // namespace packhorse::cuda
