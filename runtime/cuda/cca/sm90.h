// The Hopper kernel of compressed convolutional attention.
#pragma once

#include "cuda/device/stream.h"
#include "ops/args/cca.h"

namespace packhorse::cuda {

/// The heads of what CcaArgs says, with the same bits as the kernels by mma.sync, for
/// heads of 64 or 128 columns, two taps in both convolutions and a delayed_column that is a
/// multiple of 8. It does not keep the state. Asynchronous on `stream`, for devices of compute
/// capability 9.0. Throws RuntimeError.
void launch_cca_sm90(const CcaArgs& args, const KernelStream& stream);

}  // namespace packhorse::cuda
