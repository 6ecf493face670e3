#include <algorithm>

#include "cuda/attention/paged/fp8.h"
#include "cuda/attention/paged/launch.cuh"
#include "cuda/attention/paged/sm90.h"

namespace packhorse::cuda {
namespace {

// Most workspace for rows of split chunks. A batch that would need more is not split: it has so
// many rows, or so long sequences, that blocks fill the device without a split.
constexpr size_t kSplitBytes = size_t{64} << 20;

size_t entry_bytes(int64_t head_dim) {
  return static_cast<size_t>(head_dim) * sizeof(float) + sizeof(float2);
}

int64_t slab_count(const PagedAttentionParams& args) {
  return paged_slots(args, slab_rows(args)) * args.num_kv_heads;
}

// Returns whether the Hopper kernel for many rows runs, and not the portable one; both give the
// same bits.
bool takes_sm90(const PagedAttentionParams& args) {
  return kernels_may_overlap() && args.key_scales == nullptr &&
         attention_pages_sm90_supported(args);
}

template <class T, int kDim>
using Prefill = PagedTiles<T, PagedTraits<kDim, kPrefillWarps>>;
template <class T, int kDim, int kRows>
using Decode = DecodeTiles<T, DecodeTraits<kDim, kRows>>;

// Returns whether the kernel for few rows fits in the device's shared memory.
bool decode_fits(const PagedAttentionParams& args) {
  const size_t bytes = args.key_scales != nullptr ? decode_float8_shared_bytes(args)
                                                  : decode_shared_bytes<Decode>(args);
  return bytes <= args.most_shared_bytes;
}

// Returns whether the kernel for few rows is the faster one, where both fit; both give the same
// bits.
bool takes_skinny(const PagedAttentionParams& args) {
  return decode_fits(args) && (most_rows(args) <= 16 || slab_count(args) < args.sm_count);
}

void launch_prefill(const PagedAttentionParams& args, cudaStream_t stream) {
  if (args.key_scales != nullptr) return launch_prefill_float8(args, stream);
  dispatch_pages(args.dtype, args.head_dim, [&]<class T, int kDim>() {
    launch_pages_prefill<Prefill<T, kDim>>(args, stream);
  });
}

void launch_skinny(const PagedAttentionParams& args, cudaStream_t stream) {
  PagedKernelParams params = paged_kernel_params(args);
  if (args.workspace != nullptr && slab_count(args) <= kPagedCounters) {
    params.entries = static_cast<int64_t>(args.workspace_bytes / entry_bytes(args.head_dim));
    params.sums = args.workspace;
    params.state = reinterpret_cast<float2*>(params.sums + params.entries * args.head_dim);
    params.counters = args.counters;
  }
  if (args.key_scales != nullptr) return launch_decode_float8(params, stream);
  dispatch_pages(args.dtype, args.head_dim, [&]<class T, int kDim>() {
    slab_rows(args) == 8 ? launch_paged_decode<Decode<T, kDim, 8>>(params, stream)
                         : launch_paged_decode<Decode<T, kDim, 16>>(params, stream);
  });
}

}  // namespace

void prepare_attention_pages(size_t most_shared_bytes) {
  allow_pages_shared_memory<Prefill, Decode>(most_shared_bytes);
  prepare_attention_pages_float8(most_shared_bytes);
  if constexpr (kBuiltForSm90) {
    if (kernels_may_overlap()) prepare_attention_pages_sm90();
  }
}

size_t attention_pages_workspace(int64_t num_tokens, int64_t max_kv_len, int64_t num_heads,
                                 int64_t head_dim) {
  if (max_kv_len <= chunk_keys(head_dim)) return 0;
  const auto entries =
      static_cast<size_t>(chunk_count(max_kv_len, head_dim) * num_tokens * num_heads);
  return std::min(kSplitBytes, entries * entry_bytes(head_dim));
}

bool appends_to_pages(const PagedAttentionParams& args) {
  return args.key_scales == nullptr && takes_skinny(args);
}

void launch_attention_pages(const PagedAttentionParams& args, cudaStream_t stream) {
  if (args.num_tokens == 0 || args.num_sequences == 0) return;
  if (takes_skinny(args)) return launch_skinny(args, stream);
  // A block that goes through all keys of one token would hold up the others.
  PagedAttentionParams first = args;
  first.num_tokens = first.num_sequences = args.num_single;
  first.max_seqlen = 1;
  first.new_keys = first.new_values = nullptr;  // the kernel before has written them to their pages
  const int num_single = decode_fits(first) ? args.num_single : 0;
  if (num_single > 0) launch_skinny(first, stream);
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
