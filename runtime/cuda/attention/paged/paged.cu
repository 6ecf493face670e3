#include <algorithm>

#include "cuda/attention/paged/fp8.h"
#include "cuda/attention/paged/launch.cuh"
#include "cuda/attention/paged/sm90.h"

namespace packhorse::cuda {
namespace {

// Most workspace, in bytes, for partial results of sequences that are split among blocks. A batch
// that would need more is not split, since its rows mostly fill the device without a split.
constexpr size_t kSplitBytes = size_t{64} << 20;

size_t entry_bytes(int64_t head_dim) {
  return static_cast<size_t>(head_dim) * sizeof(float) + sizeof(float2);
}

int64_t slab_count(const AttentionArgs& args) {
  return paged_slots(args, slab_rows(args)) * args.num_kv_heads;
}

// True if the Hopper kernel for many rows runs, not the portable one; both give the same bits.
bool takes_sm90(const AttentionArgs& args, const PagedLaunch& how, const DeviceCaps& caps) {
  return caps.wgmma && !args.pages.key_scales && attention_pages_sm90_supported(args, how);
}

template <class T, int kDim>
using Prefill = PagedTiles<T, PagedTraits<kDim, kPrefillWarps>>;
template <class T, int kDim, int kRows>
using Decode = DecodeTiles<T, DecodeTraits<kDim, kRows>>;

// True if the kernel for few rows finds room in the device's shared memory.
bool decode_fits(const AttentionArgs& args, const DeviceCaps& caps) {
  const size_t bytes =
      args.pages.key_scales ? decode_float8_shared_bytes(args) : decode_shared_bytes<Decode>(args);
  return bytes <= caps.shared_bytes;
}

// True if the kernel for few rows runs, not one for many: where it finds room and is the faster
// one. All give the same bits.
bool takes_skinny(const AttentionArgs& args, const DeviceCaps& caps) {
  return decode_fits(args, caps) && (most_rows(args) <= 16 || slab_count(args) < caps.sm_count);
}

void launch_prefill(const AttentionArgs& args, const KernelStream& stream) {
  if (args.pages.key_scales) return launch_prefill_float8(args, stream);
  dispatch_pages(args.q.dtype, args.head_dim, [&]<class T, int kDim>() {
    launch_pages_prefill<Prefill<T, kDim>>(args, stream);
  });
}

void launch_skinny(const AttentionArgs& args, const PagedLaunch& how, const KernelStream& stream) {
  PagedKernelParams params = paged_kernel_params(args, stream.caps);
  if (args.workspace != nullptr && slab_count(args) <= kPagedCounters) {
    params.entries = static_cast<int64_t>(how.workspace_bytes / entry_bytes(args.head_dim));
    params.sums = static_cast<float*>(args.workspace);
    params.state = reinterpret_cast<float2*>(params.sums + params.entries * args.head_dim);
    params.counters = how.counters;
  }
  if (args.pages.key_scales) return launch_decode_float8(params, stream);
  dispatch_pages(args.q.dtype, args.head_dim, [&]<class T, int kDim>() {
    slab_rows(args) == 8 ? launch_paged_decode<Decode<T, kDim, 8>>(params, stream)
                         : launch_paged_decode<Decode<T, kDim, 16>>(params, stream);
  });
}

}  // namespace

void prepare_attention_pages(const DeviceCaps& caps) {
  allow_pages_shared_memory<Prefill, Decode>(caps.shared_bytes);
  prepare_attention_pages_float8(caps);
  if constexpr (kBuiltForSm90) {
    if (caps.wgmma) prepare_attention_pages_sm90();
  }
}

size_t attention_pages_workspace(int64_t num_tokens, int64_t max_kv_len, int64_t num_heads,
                                 int64_t head_dim) {
  if (max_kv_len <= chunk_keys(head_dim)) return 0;
  const auto entries =
      static_cast<size_t>(chunk_count(max_kv_len, head_dim) * num_tokens * num_heads);
  return std::min(kSplitBytes, entries * entry_bytes(head_dim));
}

bool appends_to_pages(const AttentionArgs& args, const DeviceCaps& caps) {
  return !args.pages.key_scales && takes_skinny(args, caps);
}

void launch_attention_pages(const AttentionArgs& args, const PagedLaunch& how,
                            const KernelStream& stream) {
  if (args.queries.num_tokens == 0 || args.queries.num_sequences == 0) return;
  if (takes_skinny(args, stream.caps)) return launch_skinny(args, how, stream);
  // Sequences of a single token go to the kernel for few rows: in a kernel for many, a block would
  // walk through all keys for one token and hold up the others.
  AttentionArgs first = args;
  first.queries.num_tokens = first.queries.num_sequences = args.pages.num_single;
  first.queries.max_seqlen = 1;
  first.k = first.v = {};  // keys and values lie in their pages already
  const int64_t num_single = decode_fits(first, stream.caps) ? args.pages.num_single : 0;
  if (num_single > 0) launch_skinny(first, how, stream);
  if (num_single == args.queries.num_sequences) return;
  AttentionArgs rest = args;
  rest.queries.num_sequences -= num_single;
  rest.queries.cu_seqlens += num_single;
  rest.pages.kv_lens += num_single;
  rest.pages.table += num_single * args.pages.table_stride;
  if constexpr (kBuiltForSm90) {
    if (takes_sm90(rest, how, stream.caps)) return launch_attention_pages_sm90(rest, how, stream);
  }
  launch_prefill(rest, stream);
}

}  // namespace packhorse::cuda
