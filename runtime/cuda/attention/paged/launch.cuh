// Launches of the kernels of attention over pages, whatever the dtype of the pages.
#pragma once

#include <algorithm>

#include "core/math.h"
#include "cuda/attention/paged/decode_kernel.cuh"
#include "cuda/common/tensor_map.h"
#include "cuda/device/caps.h"
#include "cuda/device/check.h"

namespace packhorse::cuda {

inline constexpr int kPrefillWarps = 4;

/// Calls launch.operator()<T, kDim>() with the smallest kDim that holds a head.
template <class Launch>
void dispatch_pages(DType dtype, int64_t head_dim, Launch launch) {
  dispatch_dtype(dtype, [&]<class T>() {
    if (head_dim <= 64) return launch.template operator()<T, 64>();
    if (head_dim <= 128) return launch.template operator()<T, 128>();
    if (head_dim <= 256) return launch.template operator()<T, 256>();
    throw InvalidArgument(concat("head_dim ", head_dim, " is over 256"));
  });
}

/// Calls launch.operator()<T, kDim>() for every combination that dispatch_pages can choose.
template <class Launch>
void for_all_pages(Launch launch) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    for (const int head_dim : {64, 128, 256}) dispatch_pages(dtype, head_dim, launch);
  }
}

inline int64_t chunk_keys(int64_t head_dim) {
  return head_dim <= 64 ? kChunkKeys<64> : head_dim <= 128 ? kChunkKeys<128> : kChunkKeys<256>;
}

inline int64_t chunk_count(int64_t max_kv_len, int64_t head_dim) {
  const int64_t keys = chunk_keys(head_dim);
  return ceil_div(max_kv_len, keys);
}

/// Rows of the longest sequence of a step: tokens times heads of a group.
inline int64_t most_rows(const AttentionArgs& args) {
  return args.queries.max_seqlen * args.num_heads / args.num_kv_heads;
}

/// Rows of a slab of the kernel for few rows.
inline int slab_rows(const AttentionArgs& args) { return most_rows(args) <= 8 ? 8 : 16; }

/// Raises a kernel's shared memory limit to `bytes`. A kernel that needs more than `most`, the
/// device's limit per block, is left alone, as it is never launched there.
template <class Kernel>
void allow_shared_memory(Kernel* kernel, size_t bytes, size_t most) {
  if (bytes > most) return;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(bytes)));
}

/// Raises the shared memory limits of the kernels for pages of one dtype: `Prefill` for many query
/// rows, `Decode` for few.
template <template <class, int> class Prefill, template <class, int, int> class Decode>
void allow_pages_shared_memory(size_t most) {
  for_all_pages([&]<class T, int kDim>() {
    allow_shared_memory(paged_attention_kernel<Prefill<T, kDim>>,
                        Prefill<T, kDim>::Traits::kSharedBytes, most);
    allow_shared_memory(paged_decode_kernel<Decode<T, kDim, 8>>,
                        Decode<T, kDim, 8>::Traits::kSharedBytes, most);
    allow_shared_memory(paged_decode_kernel<Decode<T, kDim, 16>>,
                        Decode<T, kDim, 16>::Traits::kSharedBytes, most);
  });
}

/// Bytes of shared memory of the kernel for few rows.
template <template <class, int, int> class Decode>
size_t decode_shared_bytes(const AttentionArgs& args) {
  size_t bytes = 0;
  dispatch_pages(args.q.dtype, args.head_dim, [&]<class T, int kDim>() {
    bytes = slab_rows(args) == 8 ? Decode<T, kDim, 8>::Traits::kSharedBytes
                                 : Decode<T, kDim, 16>::Traits::kSharedBytes;
  });
  return bytes;
}

template <class Tiles>
void launch_pages_prefill(const AttentionArgs& args, const KernelStream& stream) {
  using Traits = typename Tiles::Traits;
  const dim3 grid(static_cast<unsigned>(paged_slots(args, Traits::kRows)),
                  static_cast<unsigned>(args.num_kv_heads));
  launch_kernel(paged_attention_kernel<Tiles>, grid, Traits::kThreads, Traits::kSharedBytes, stream,
                paged_kernel_params(args, stream.caps));
}

template <class Tiles>
void launch_paged_decode(const PagedKernelParams& common, const KernelStream& stream) {
  using Traits = typename Tiles::Traits;
  DecodeKernelParams params{common, {}, {}};
  const AttentionArgs& args = params.args;
  if (Traits::kTmaHelps && stream.caps.tma) {
    const auto map = [&](const void* pages) {
      return matrix_tensor_map(pages, args.q.dtype, args.pages.keys.rows(), args.head_dim,
                               args.head_dim, Traits::kKeys, 64);
    };
    params.key_map = map(args.pages.keys.data);
    params.value_map = map(args.pages.values.data);
  }
  // The grid has at most as many blocks as fit the device at once; they share the work.
  const int64_t work = paged_slots(args, Traits::kRows) * args.num_kv_heads *
                       (params.entries > 0 ? chunk_count(args.pages.max_kv_len, args.head_dim) : 1);
  launch_kernel(
      paged_decode_kernel<Tiles>,
      dim3(static_cast<unsigned>(std::min(
          {work, int64_t{Traits::kBlocks} * params.sm_count, int64_t{SlabCounter::kMostBlocks}}))),
      Traits::kThreads, Traits::kSharedBytes, stream, params);
}

}  // namespace packhorse::cuda
