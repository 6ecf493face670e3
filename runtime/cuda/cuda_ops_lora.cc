// The operator of LoRA adapters.
#include <utility>

#include "cuda/cuda_ops.h"
#include "cuda/device/caps.h"
#include "cuda/rowwise/rowwise.h"

namespace packhorse::cuda {

void CudaOps::do_add_lora(const LoraArgs& args) { add_lora("add_lora", args, {}); }

void CudaOps::add_lora(const char* op, const LoraArgs& args, const RopeArgs& heads) {
  check_compute(op, args.x.dtype);
  for (auto [name, view] :
       {std::pair{"x", &args.x}, {"a", &args.layer.a}, {"b", &args.layer.b}, {"out", &args.out}}) {
    check_vectors(op, name, *view);
  }
  const DeviceGuard guard(device_);
  launch_add_lora(args, heads, stream_);
}

}  // namespace packhorse::cuda
