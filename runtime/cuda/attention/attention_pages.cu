#include <algorithm>

#include "cuda/attention/attention_pages_few_kernel.cuh"
#include "cuda/attention/attention_pages_sm90.h"
#include "cuda/check.h"
#include "cuda/device.h"
#include "cuda/tensor_map.h"
#include "cuda/unproven.h"

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

int64_t chunk_keys(int64_t head_dim) {
  return head_dim <= 64 ? kChunkKeys<64> : head_dim <= 128 ? kChunkKeys<128> : kChunkKeys<256>;
}

int64_t chunk_count(int64_t max_kv_len, int64_t head_dim) {
  const int64_t keys = chunk_keys(head_dim);
  return (max_kv_len + keys - 1) / keys;
}

size_t entry_bytes(int64_t head_dim) {
  return static_cast<size_t>(head_dim) * sizeof(float) + sizeof(float2);
}

// Rows of the longest sequence of a step: tokens times heads of a group.
int64_t most_rows(const PagedAttentionParams& args) {
  return int64_t{args.max_seqlen} * args.num_heads / args.num_kv_heads;
}

// Rows of a slab of the kernel for few rows.
int slab_rows(const PagedAttentionParams& args) { return most_rows(args) <= 8 ? 8 : 16; }

int64_t slab_count(const PagedAttentionParams& args) {
  return paged_slots(args, slab_rows(args)) * args.num_kv_heads;
}

// Which of the two kernels is faster; both give the same bits.
bool takes_few(const PagedAttentionParams& args) {
  return most_rows(args) <= 16 || slab_count(args) < args.sm_count;
}

// Which of the two kernels for many rows runs; both give the same bits.
bool takes_sm90(const PagedAttentionParams& args) {
  return unproven_kernels() && kernels_may_overlap() && attention_pages_sm90_supported(args);
}

void launch_prefill(const PagedAttentionParams& args, cudaStream_t stream) {
  const PagedKernelParams params = paged_kernel_params(args);
  dispatch_pages(args.dtype, args.head_dim, [&]<class T, int kDim>() {
    using Traits = PagedTraits<kDim, kPrefillWarps>;
    const dim3 grid(static_cast<unsigned>(paged_slots(args, Traits::kRows)),
                    static_cast<unsigned>(args.num_kv_heads));
    launch_kernel(paged_attention_kernel<T, kDim, kPrefillWarps>, grid, Traits::kThreads,
                  Traits::kSharedBytes, stream, params);
  });
}

template <class T, int kDim, int kRows, bool kByLanes>
void launch_few_rows(const PagedKernelParams& common, cudaStream_t stream) {
  using Traits = FewTraits<kDim, kRows>;
  FewKernelParams params{common, {}, {}};
  const PagedAttentionParams& args = params.args;
  if (Traits::kTmaHelps && kernels_may_overlap()) {  // devices with TMA
    const auto map = [&](const void* pages) {
      return matrix_tensor_map(pages, args.dtype, args.page_rows, args.head_dim, args.head_dim,
                               Traits::kKeys, 64);
    };
    params.key_map = map(args.keys);
    params.value_map = map(args.values);
  }
  // As many blocks as fit the device at once, which share the work.
  const int64_t work = paged_slots(args, kRows) * args.num_kv_heads *
                       (params.entries > 0 ? chunk_count(args.max_kv_len, args.head_dim) : 1);
  launch_kernel(
      paged_attention_few_kernel<T, kDim, kRows, kByLanes>,
      dim3(static_cast<unsigned>(std::min(work, int64_t{Traits::kBlocks} * args.sm_count))),
      Traits::kThreads, Traits::kSharedBytes, stream, params);
}

void launch_few(const PagedAttentionParams& args, cudaStream_t stream) {
  PagedKernelParams params = paged_kernel_params(args);
  if (args.workspace != nullptr && slab_count(args) <= kPagedCounters) {
    params.entries = static_cast<int64_t>(args.workspace_bytes / entry_bytes(args.head_dim));
    params.sums = args.workspace;
    params.state = reinterpret_cast<float2*>(params.sums + params.entries * args.head_dim);
    params.counters = args.counters;
  }
  dispatch_pages(args.dtype, args.head_dim, [&]<class T, int kDim>() {
    const auto launch = [&]<bool kByLanes>() {
      slab_rows(args) == 8 ? launch_few_rows<T, kDim, 8, kByLanes>(params, stream)
                           : launch_few_rows<T, kDim, 16, kByLanes>(params, stream);
    };
    unproven_kernels() ? launch.template operator()<true>() : launch.template operator()<false>();
  });
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
        const auto allow_few = [&]<int kRows>() {
          constexpr size_t kBytes = FewTraits<kDim, kRows>::kSharedBytes;
          allow_shared_memory(paged_attention_few_kernel<T, kDim, kRows, false>, kBytes);
          if (unproven_kernels()) {
            allow_shared_memory(paged_attention_few_kernel<T, kDim, kRows, true>, kBytes);
          }
        };
        allow_few.template operator()<8>();
        allow_few.template operator()<16>();
      });
    }
  }
  if constexpr (kBuiltForSm90) {
    if (unproven_kernels() && kernels_may_overlap()) prepare_attention_pages_sm90();
  }
}

size_t attention_pages_workspace(int64_t num_tokens, int64_t max_kv_len, int64_t num_heads,
                                 int64_t head_dim) {
  if (max_kv_len <= chunk_keys(head_dim)) return 0;
  const auto entries =
      static_cast<size_t>(chunk_count(max_kv_len, head_dim) * num_tokens * num_heads);
  return std::min(kSplitBytes, entries * entry_bytes(head_dim));
}

bool appends_to_pages(const PagedAttentionParams& args) { return takes_few(args); }

void launch_attention_pages(const PagedAttentionParams& args, cudaStream_t stream) {
  if (args.num_tokens == 0 || args.num_sequences == 0) return;
  if (takes_few(args)) return launch_few(args, stream);
  // A block that goes through all keys of one token would hold up the others.
  const int num_single = args.num_single;
  if (num_single > 0) {
    PagedAttentionParams first = args;
    first.num_tokens = first.num_sequences = num_single;
    first.max_seqlen = 1;
    first.new_keys = first.new_values = nullptr;  // they lie in their pages already
    launch_few(first, stream);
  }
  if (num_single == args.num_sequences) return;
  PagedAttentionParams rest = args;
  rest.num_sequences -= num_single;
  rest.cu_seqlens += num_single;
  rest.kv_lens += num_single;
  rest.table += int64_t{num_single} * args.table_stride;
  if constexpr (kBuiltForSm90) {
    if (takes_sm90(rest)) return launch_attention_pages_sm90(rest, stream);
  }
  launch_prefill(rest, stream);
}

}  // namespace packhorse::cuda
