#include "cuda/cuda_ops.h"

#include <cuda_runtime_api.h>

#include <memory>
#include <utility>

#include "cuda/attention/choice.h"
#include "cuda/attention/paged/paged.h"
#include "cuda/attention/portable/sm80.h"
#include "cuda/cuda_backend.h"
#include "cuda/cuda_packer.h"
#include "cuda/device/caps.h"
#include "cuda/device/check.h"
#include "cuda/kernel_choice.h"
#include "cuda/rowwise/append_kv_cache.h"
#include "cuda/rowwise/cast.h"
#include "cuda/rowwise/embedding.h"
#include "cuda/rowwise/gate.h"
#include "cuda/rowwise/norm_float8.h"
#include "cuda/rowwise/pool.h"
#include "cuda/rowwise/unfold.h"
#include "cuda/sampling/begin_step.h"
#include "cuda/sampling/sampling.h"

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

void CudaOps::do_embed(const EmbedArgs& args) {
  check_compute("embed", args.out.dtype);
  for (auto [name, view] : {std::pair{"word", &args.word},
                            {"position", &args.position},
                            {"type", &args.type},
                            {"out", &args.out}}) {
    check_vectors("embed", name, *view);
  }
  const DeviceGuard guard(device_);
  launch_embed(args, stream_);
}

void CudaOps::do_activate(const ActivateArgs& args) {
  check_compute("activate", args.x.dtype);
  check_vectors("activate", "x", args.x);
  check_vectors("activate", "out", args.out);
  const DeviceGuard guard(device_);
  launch_activate(args, stream_);
}

void CudaOps::do_unfold(const UnfoldArgs& args) {
  check_compute("unfold", args.x.dtype);
  check_vectors("unfold", "x", args.x);
  check_vectors("unfold", "out", args.out);
  const DeviceGuard guard(device_);
  launch_unfold(args, stream_);
}

void CudaOps::do_norm(const NormArgs& args) {
  const DeviceGuard guard(device_);
  norm(args);
}

bool CudaOps::quantizes_rows(int64_t columns) const {
  return stream_.caps.wgmma && columns <= kNormFloat8Columns && columns % kFloat8Multiple == 0;
}

void CudaOps::norm(const NormArgs& args) {
  const NormParams params = norm_params(args);
  if constexpr (kBuiltForSm90) {
    if (args.quantized) return launch_norm_float8(params, args.quantized, stream_);
  }
  launch_norm(params, stream_);
}

void CudaOps::norm_in_place(const TensorView& rows, const NormWeight& weight,
                            const Float8Rows& quantized, const int32_t* row_count) {
  NormArgs args;
  args.x = rows;
  args.out = rows;
  args.norm = weight;
  args.row_count = row_count;
  args.quantized = quantized;
  norm(args);
}

void CudaOps::do_pool(const PoolArgs& args) {
  check_compute("pool", args.x.dtype);
  // Rows are read by whole vectors: the last one may end in columns that are not asked for.
  TensorView read = args.x;
  if (read.row_stride > read.columns()) {
    read.shape[1] = (read.columns() + kMultiple - 1) / kMultiple * kMultiple;
  }
  check_vectors("pool", "x", read);
  const DeviceGuard guard(device_);
  launch_pool(args, stream_);
}

void CudaOps::do_cast(const CastArgs& args) {
  const DeviceGuard guard(device_);
  launch_cast(args, stream_);
}

void CudaOps::do_gather_rows(const GatherRowsArgs& args) {
  check_compute("gather_rows", args.x.dtype);
  check_vectors("gather_rows", "x", args.x);
  check_vectors("gather_rows", "out", args.out);
  const DeviceGuard guard(device_);
  launch_gather_rows(args, stream_);
}

void CudaOps::do_clear_empty(const ClearEmptyArgs& args) {
  const DeviceGuard guard(device_);
  launch_clear_empty(args.batch.cu_seqlens, args.out, stream_);
}

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

}  // namespace cuda

Backend make_cuda_backend(int device_index, AttentionAlgorithm attention) {
  const cuda::DeviceCaps caps = cuda::device_caps(device_index);
  const cuda::DeviceGuard guard(device_index);
  auto context = std::make_unique<cuda::CudaContext>(device_index, caps);
  const bool float8 = cuda::choose_gemm_kernels(caps) == cuda::GemmKernels::kSm90;
  auto packer = std::make_unique<cuda::CudaLinearPacker>(*context, float8);
  auto ops = std::make_unique<cuda::CudaOps>(*context, attention);
  return {std::move(context), std::move(packer), std::move(ops)};
}

int cuda_device_count() { return cuda::device_count(); }

}  // namespace packhorse
