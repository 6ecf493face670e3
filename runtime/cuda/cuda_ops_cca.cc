// The operator of compressed convolutional attention.
#include <utility>

#include "core/format.h"
#include "cuda/cca/cca.h"
#include "cuda/cuda_ops.h"
#include "cuda/device/caps.h"
#include "packhorse/error.h"

namespace packhorse::cuda {

size_t CudaOps::cca_workspace(const CcaArgs& args) const {
  if (args.head_dim > kMostCcaHead) {
    throw InvalidArgument(
        concat("cca: head_dim ", args.head_dim, " is over ", kMostCcaHead, ", the most on CUDA"));
  }
  return 0;
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

}  // namespace packhorse::cuda
