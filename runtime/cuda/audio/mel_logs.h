// The kernel that makes frames of samples.
#pragma once

#include "cuda/device/stream.h"
#include "ops/args/audio.h"

namespace packhorse::cuda {

/// Ops has checked the arguments. A row of `out` depends on its own samples alone. Asynchronous on
/// `stream`; throws RuntimeError.
void launch_mel_logs(const MelLogsArgs& args, const KernelStream& stream);

}  // namespace packhorse::cuda
