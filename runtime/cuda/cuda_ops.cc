#include "cuda/cuda_ops.h"

#include <cuda_runtime_api.h>

#include <memory>

#include "core/math.h"
#include "cuda/attention/choice.h"
#include "cuda/attention/paged/paged.h"
#include "cuda/attention/portable/sm80.h"
#include "cuda/cuda_backend.h"
#include "cuda/cuda_packer.h"
#include "cuda/device/caps.h"
#include "cuda/device/check.h"
#include "cuda/kernel_choice.h"

namespace packhorse {
namespace cuda {

CudaOps::CudaOps(CudaContext& context, AttentionAlgorithm attention)
    : device_(context.index()),
      stream_(context.stream()),
      gemm_kernels_(choose_gemm_kernels(stream_.caps)),
      attention_(asked_attention_algorithm(attention)),
      counters_(device_, 256),
      page_counters_(device_, kPagedCounters * sizeof(unsigned)) {
  // An algorithm that could compute no layer is refused now, and not in the first run.
  choose_algorithm(attention_, stream_.caps.wgmma, true, {}, kMultiple);
  prepare_attention_sm80();
  prepare_attention_pages(stream_.caps);
  for (const CudaMemory* counters : {&counters_, &page_counters_}) {
    CUDA_CHECK(cudaMemsetAsync(counters->data(), 0, counters->bytes(), stream_));
  }
}

// The stream must be done with the counters before they are freed.
CudaOps::~CudaOps() { cudaStreamSynchronize(stream_); }

std::vector<std::string> CudaOps::explain(const std::function<void()>& work) {
  std::vector<std::string> lines;
  explanations_ = &lines;
  try {
    work();
  } catch (...) {
    explanations_ = nullptr;
    throw;
  }
  explanations_ = nullptr;
  return lines;
}

}  // namespace cuda

Backend make_cuda_backend(int device_index, AttentionAlgorithm attention, bool urgent) {
  const cuda::DeviceCaps caps = cuda::device_caps(device_index);
  const cuda::DeviceGuard guard(device_index);
  auto context = std::make_unique<cuda::CudaContext>(device_index, caps, urgent);
  const bool float8 = cuda::choose_gemm_kernels(caps) == cuda::GemmKernels::kSm90;
  auto packer = std::make_unique<cuda::CudaLinearPacker>(*context, float8);
  auto ops = std::make_unique<cuda::CudaOps>(*context, attention);
  return {std::move(context), std::move(packer), std::move(ops)};
}

int cuda_device_count() { return cuda::device_count(); }

}  // namespace packhorse
