#include <algorithm>

#include "cuda/attention/attention_pages_kernel.cuh"
#include "cuda/check.h"

namespace packhorse::cuda {
namespace {

// What rows of split chunks may take in memory; where they would take more there are so many rows
// that blocks without a split fill the device.
constexpr size_t kSplitBytes = size_t{64} << 20;
// Blocks for each multiprocessor below which long sequences are split among more of them.
constexpr int64_t kBlocksPerMultiprocessor = 4;
// Rows that the tile of a single warp holds.
constexpr int kWarpRows = 16;
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

int64_t chunk_count(int64_t max_kv_len) { return (max_kv_len + kChunkTokens - 1) / kChunkTokens; }

size_t split_bytes(int64_t num_tokens, int64_t max_kv_len, int64_t num_heads, int64_t head_dim) {
  return static_cast<size_t>(chunk_count(max_kv_len) * num_tokens * num_heads * (head_dim + 2)) *
         sizeof(float);
}

KeyWindow window_of(const AttentionMask& mask) {
  const auto side = [](int32_t limit) {
    return limit < 0 ? kUnlimitedWindow : std::min(limit, kUnlimitedWindow);
  };
  return {side(mask.window_left), mask.causal ? 0 : side(mask.window_right)};
}

template <class T, int kDim, int kWarps, bool kSplit>
void launch(const PagedKernelParams& params, cudaStream_t stream) {
  using Traits = PagedTraits<kDim, kWarps>;
  const dim3 grid(static_cast<unsigned>(paged_slots(params.args, Traits::kRows)),
                  static_cast<unsigned>(params.args.num_kv_heads),
                  kSplit ? static_cast<unsigned>(chunk_count(params.args.max_kv_len)) : 1u);
  launch_kernel(paged_attention_kernel<T, kDim, kWarps, kSplit>, grid, Traits::kThreads,
                Traits::kSharedBytes, stream, params);
}

template <class T>
void launch_merge(const PagedKernelParams& params, cudaStream_t stream) {
  const int64_t rows = int64_t{params.args.num_tokens} * params.args.num_heads;
  launch_kernel(merge_chunks_kernel<T>, dim3(static_cast<unsigned>((rows + 3) / 4)), 128, 0, stream,
                params);
}

template <class T, int kDim, int kWarps, bool kSplit>
void allow_shared_memory() {
  CUDA_CHECK(cudaFuncSetAttribute(paged_attention_kernel<T, kDim, kWarps, kSplit>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(PagedTraits<kDim, kWarps>::kSharedBytes)));
}

}  // namespace

void prepare_attention_pages() {
  for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    for (int head_dim : {64, 128, 256}) {
      dispatch_pages(dtype, head_dim, [&]<class T, int kDim>() {
        allow_shared_memory<T, kDim, 1, false>();
        allow_shared_memory<T, kDim, 1, true>();
        allow_shared_memory<T, kDim, kPrefillWarps, false>();
      });
    }
  }
}

size_t attention_pages_workspace(int64_t num_tokens, int64_t max_kv_len, int64_t num_heads,
                                 int64_t head_dim) {
  if (max_kv_len <= kChunkTokens) return 0;
  return std::min(kSplitBytes, split_bytes(num_tokens, max_kv_len, num_heads, head_dim));
}

void launch_attention_pages(const PagedAttentionParams& args, cudaStream_t stream) {
  if (args.num_tokens == 0 || args.num_sequences == 0) return;
  PagedKernelParams params{.args = args, .window = window_of(args.mask)};
  const int64_t rows = int64_t{args.max_seqlen} * args.num_heads / args.num_kv_heads;
  const int64_t blocks = paged_slots(args, kWarpRows) * args.num_kv_heads;
  const size_t bytes = split_bytes(args.num_tokens, args.max_kv_len, args.num_heads, args.head_dim);
  const bool few = rows <= kWarpRows || blocks < args.sm_count;
  const bool split = few && args.max_kv_len > kChunkTokens &&
                     blocks < kBlocksPerMultiprocessor * args.sm_count &&
                     bytes <= args.workspace_bytes;
  if (split) {
    params.sums = args.workspace;
    const int64_t partials = chunk_count(args.max_kv_len) * args.num_tokens * args.num_heads;
    params.state = reinterpret_cast<float2*>(params.sums + partials * args.head_dim);
  }
  dispatch_pages(args.dtype, args.head_dim, [&]<class T, int kDim>() {
    if (split) {
      launch<T, kDim, 1, true>(params, stream);
      return launch_merge<T>(params, stream);
    }
    if (few) return launch<T, kDim, 1, false>(params, stream);
    launch<T, kDim, kPrefillWarps, false>(params, stream);
  });
}

}  // namespace packhorse::cuda
