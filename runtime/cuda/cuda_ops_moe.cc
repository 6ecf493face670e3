// The operators of mixtures of experts and of scaled residuals.
#include <utility>

#include "core/format.h"
#include "cuda/cuda_ops.h"
#include "cuda/device/caps.h"
#include "cuda/moe/moe.h"
#include "packhorse/error.h"

namespace packhorse::cuda {

size_t CudaOps::moe_workspace(const MoeArgs& args) const {
  if (!args.experts.empty() && args.experts.front().up.dtype == DType::kInt8) {
    throw RuntimeError(
        "a mixture of experts in int8: CUDA computes float16 or bfloat16; the CPU computes int8");
  }
  if (args.experts.size() > kMostCudaExperts) {
    throw RuntimeError(concat("a mixture of ", args.experts.size(),
                              " experts: CUDA computes up to ", kMostCudaExperts,
                              "; the CPU computes more"));
  }
  return moe_workspace_bytes(args);
}

void CudaOps::do_moe(const MoeArgs& args) {
  const char* op = "moe";
  check_compute(op, args.x.dtype);
  check_vectors(op, "x", args.x);
  check_vectors(op, "out", args.out);
  moe_workspace(args);
  if (args.workspace == nullptr) throw InvalidArgument("moe: workspace is missing");
  const DeviceGuard guard(device_);
  launch_moe(args, stream_);
}

void CudaOps::do_add_scaled(const AddScaledArgs& args) {
  const char* op = "add_scaled";
  check_compute(op, args.x.dtype);
  for (auto [name, view] :
       {std::pair{"x", &args.x}, {"residual", &args.residual}, {"out", &args.out}}) {
    check_vectors(op, name, *view);
  }
  const DeviceGuard guard(device_);
  launch_add_scaled(args, stream_);
}

}  // namespace packhorse::cuda
