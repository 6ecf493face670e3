#include <algorithm>

#include "cuda/attention/attention_pages_few_kernel.cuh"
#include "cuda/check.h"

namespace packhorse::cuda {
namespace {

// What rows of split chunks may take in memory. Sequences beyond that are not split: there are then
// so many rows, or so long sequences, that blocks without a split fill the device.
constexpr size_t kSplitBytes = size_t{64} << 20;
constexpr int kPrefillWarps = 4;

// Calls launch.operator()<T, kDim>() with the smallest kDim that holds a head.
template <class Launch>
void dispatch_pages(DType dtype, int64_t head_dim, Launch launch) {
  dispatch_dtype(dtype, [&]<class T>() {
    if (head_dim <= 64) return launch.template operator()<T, 64>();
    if (head_dim <= 128) return launch.template operator()<T, 128>();
    if (head_dim <= 256) return launch.template operator()<T, 256>();
    throw InvalidArgument(concat("head_dim ", head_dim, " is over 256"));
  });
}

int64_t chunk_count(int64_t max_kv_len) { return (max_kv_len + kChunkKeys - 1) / kChunkKeys; }

size_t entry_bytes(int64_t head_dim) {
  return static_cast<size_t>(head_dim) * sizeof(float) + sizeof(float2);
}

KeyWindow window_of(const AttentionMask& mask) {
  const auto side = [](int32_t limit) {
    return limit < 0 ? kUnlimitedWindow : std::min(limit, kUnlimitedWindow);
  };
  return {side(mask.window_left), mask.causal ? 0 : side(mask.window_right)};
}

template <class T, int kDim>
void launch_prefill(const PagedKernelParams& params, cudaStream_t stream) {
  using Traits = PagedTraits<kDim, kPrefillWarps>;
  const dim3 grid(static_cast<unsigned>(paged_slots(params.args, Traits::kRows)),
                  static_cast<unsigned>(params.args.num_kv_heads));
  launch_kernel(paged_attention_kernel<T, kDim, kPrefillWarps>, grid, Traits::kThreads,
                Traits::kSharedBytes, stream, params);
}

template <class T, int kDim>
void launch_few(const PagedKernelParams& params, cudaStream_t stream) {
  using Traits = FewTraits<kDim>;
  const PagedAttentionParams& args = params.args;
  // As many blocks as fit the device at once: each takes work until there is no more.
  const int64_t work = paged_slots(args, Traits::kRows) * args.num_kv_heads *
                       (params.entries > 0 ? chunk_count(args.max_kv_len) : 1);
  launch_kernel(
      paged_attention_few_kernel<T, kDim>,
      dim3(static_cast<unsigned>(std::min(work, int64_t{Traits::kBlocks} * args.sm_count))),
      Traits::kThreads, Traits::kSharedBytes, stream, params);
}

template <class Kernel>
void allow_shared_memory(Kernel* kernel, size_t bytes) {
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(bytes)));
}

}  // namespace

void prepare_attention_pages() {
  for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    for (int head_dim : {64, 128, 256}) {
      dispatch_pages(dtype, head_dim, [&]<class T, int kDim>() {
        allow_shared_memory(paged_attention_kernel<T, kDim, kPrefillWarps>,
                            PagedTraits<kDim, kPrefillWarps>::kSharedBytes);
        allow_shared_memory(paged_attention_few_kernel<T, kDim>, FewTraits<kDim>::kSharedBytes);
      });
    }
  }
}

size_t attention_pages_workspace(int64_t num_tokens, int64_t max_kv_len, int64_t num_heads,
                                 int64_t head_dim) {
  if (max_kv_len <= kChunkKeys) return 0;
  const auto entries = static_cast<size_t>(chunk_count(max_kv_len) * num_tokens * num_heads);
  return std::min(kSplitBytes, entries * entry_bytes(head_dim));
}

void launch_attention_pages(const PagedAttentionParams& args, cudaStream_t stream) {
  if (args.num_tokens == 0 || args.num_sequences == 0) return;
  PagedKernelParams params{.args = args, .window = window_of(args.mask)};
  const int64_t rows = int64_t{args.max_seqlen} * args.num_heads / args.num_kv_heads;
  const int64_t slabs = paged_slots(args, kFewRows) * args.num_kv_heads;
  if (args.workspace != nullptr && slabs <= kPagedCounters) {
    params.entries = static_cast<int64_t>(args.workspace_bytes / entry_bytes(args.head_dim));
    params.sums = args.workspace;
    params.state = reinterpret_cast<float2*>(params.sums + params.entries * args.head_dim);
    params.counters = args.counters;
  }
  dispatch_pages(args.dtype, args.head_dim, [&]<class T, int kDim>() {
    rows <= kFewRows || slabs < args.sm_count ? launch_few<T, kDim>(params, stream)
                                              : launch_prefill<T, kDim>(params, stream);
  });
}

}  // namespace packhorse::cuda
