// The CUDA backend's operators of compressed convolutional attention and of mixtures of experts.
#include <utility>

#include "core/format.h"
#include "cuda/cca/cca.h"
#include "cuda/cuda_ops.h"
#include "cuda/moe/moe.h"
#include "packhorse/error.h"

namespace packhorse::cuda {

size_t CudaOps::cca_workspace(const CcaArgs& args) const {
  if (args.head_dim > kMostCcaHead) {
    throw InvalidArgument(
        concat("cca: head_dim ", args.head_dim, " is over ", kMostCcaHead, ", the most on CUDA"));
  }
  return 0;
}

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

void CudaOps::do_cca(const CcaArgs& args) {
  const char* op = "cca";
  check_compute(op, args.latents.dtype);
  for (auto [name, view] :
       {std::pair{"latents", &args.latents}, {"grouped", &args.grouped}, {"out", &args.out}}) {
    check_vectors(op, name, *view);
  }
  if (args.delayed_column % kMultiple == 0) check_vectors(op, "pages.rows", args.pages.rows);
  cca_workspace(args);
  const DeviceGuard guard(device_);
  launch_cca(args, gemm_kernels_ == GemmKernels::kSm90, stream_);
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
