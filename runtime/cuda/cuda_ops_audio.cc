// The operator that makes frames of samples.
#include "cuda/audio/mel_logs.h"
#include "cuda/cuda_ops.h"

namespace packhorse::cuda {

void CudaOps::do_mel_logs(const MelLogsArgs& args) {
  const DeviceGuard guard(device_);
  launch_mel_logs(args, stream_);
}

}  // namespace packhorse::cuda
