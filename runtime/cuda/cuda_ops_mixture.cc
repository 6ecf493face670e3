// The CUDA backend's operators of compressed convolutional attention and of mixtures of experts.
#include <utility>

#include "core/format.h"
#include "cuda/convolution/convolve_heads.h"
#include "cuda/cuda_ops.h"
#include "cuda/mixture/mixture.h"
#include "packhorse/error.h"

namespace packhorse::cuda {

size_t CudaOps::convolve_heads_workspace(const ConvolveHeadsArgs& args) const {
  if (args.head_dim > kMostConvolvedHead) {
    throw InvalidArgument(concat("convolve_heads: head_dim ", args.head_dim, " is over ",
                                 kMostConvolvedHead, ", the most on CUDA"));
  }
  return 0;
}

size_t CudaOps::mixture_workspace(const MixtureArgs& args) const {
  if (!args.experts.empty() && args.experts.front().up.dtype == DType::kInt8) {
    throw RuntimeError(
        "a mixture of experts in int8: CUDA computes float16 or bfloat16; the CPU computes int8");
  }
  if (args.experts.size() > kMostCudaExperts) {
    throw RuntimeError(concat("a mixture of ", args.experts.size(),
                              " experts: CUDA computes up to ", kMostCudaExperts,
                              "; the CPU computes more"));
  }
  return mixture_workspace_bytes(args);
}

void CudaOps::do_convolve_heads(const ConvolveHeadsArgs& args) {
  const char* op = "convolve_heads";
  check_compute(op, args.latents.dtype);
  for (auto [name, view] :
       {std::pair{"latents", &args.latents}, {"grouped", &args.grouped}, {"out", &args.out}}) {
    check_vectors(op, name, *view);
  }
  if (args.delayed_column % kMultiple == 0) check_vectors(op, "pages.rows", args.pages.rows);
  convolve_heads_workspace(args);
  const DeviceGuard guard(device_);
  launch_convolve_heads(args, gemm_kernels_ == GemmKernels::kSm90, sm_count_, stream_);
}

void CudaOps::do_mixture(const MixtureArgs& args) {
  const char* op = "mixture";
  check_compute(op, args.x.dtype);
  check_vectors(op, "x", args.x);
  check_vectors(op, "out", args.out);
  mixture_workspace(args);
  if (args.workspace == nullptr) throw InvalidArgument("mixture: workspace is missing");
  const DeviceGuard guard(device_);
  launch_mixture(args, sm_count_, stream_);
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
