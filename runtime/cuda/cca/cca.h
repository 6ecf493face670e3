// The operator of compressed convolutional attention on CUDA: from latents to heads.
#pragma once

#include "cuda/device/stream.h"
#include "ops/args/cca.h"

namespace packhorse::cuda {

/// The most columns of a head.
inline constexpr int kMostCcaHead = 256;

/// Computes what CcaArgs says, in float16 or bfloat16. Heads of 64 and 128 columns with two taps in
/// both convolutions are computed by tensor cores, which take the result of the first convolution
/// rounded to the dtype of the latents; all others by a plain kernel, in float32. With `wgmma`,
/// which needs compute capability 9.0, larger batches take the kernel by wgmma, which gives the
/// bits of those by mma.sync. It allocates nothing, is asynchronous on `stream` and may be
/// captured. Throws RuntimeError.
void launch_cca(const CcaArgs& args, bool wgmma, const KernelStream& stream);

}  // namespace packhorse::cuda
