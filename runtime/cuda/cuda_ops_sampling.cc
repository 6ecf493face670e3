// The operators of generation.
#include "cuda/cuda_ops.h"
#include "cuda/device/caps.h"
#include "cuda/sampling/sampling.h"

namespace packhorse::cuda {

void CudaOps::do_sample(const SampleArgs& args) {
  const DeviceGuard guard(device_);
  launch_sample(args, stream_);
}

void CudaOps::do_count_tokens(const CountTokensArgs& args) {
  const DeviceGuard guard(device_);
  launch_count_tokens(args, stream_);
}

void CudaOps::do_begin_step(const BeginStepArgs& args) {
  const DeviceGuard guard(device_);
  launch_begin_step(args, stream_);
}

}  // namespace packhorse::cuda
