#include <algorithm>

#include "cuda/attention/paged/sm90.h"
#include "cuda/attention/paged/sm90_kernel.cuh"
#include "cuda/common/tensor_map_blocks.h"
#include "cuda/device/check.h"

namespace packhorse::cuda {
namespace {

// Calls launch.operator()<T, kDim, kRare>() with the smallest kDim that holds a head.
template <class Launch>
void dispatch_pages_sm90(DType dtype, int64_t head_dim, bool rare, Launch launch) {
  dispatch_dtype(dtype, [&]<class T>() {
    if (head_dim <= 64) {
      rare ? launch.template operator()<T, 64, true>() : launch.template operator()<T, 64, false>();
    } else {
      rare ? launch.template operator()<T, 128, true>()
           : launch.template operator()<T, 128, false>();
    }
  });
}

CUtensorMap query_map(const AttentionArgs& args, int group, int slab_tokens) {
  const auto extent = [](int64_t value) { return static_cast<cuuint64_t>(value); };
  return tensor_map<3>(
      args.q.data, args.q.dtype,
      {extent(args.head_dim), extent(args.num_heads), extent(args.queries.num_tokens)},
      {extent(args.head_dim * 2), extent(args.q.row_stride * 2)},
      {64, static_cast<cuuint32_t>(group), static_cast<cuuint32_t>(slab_tokens)});
}

// Returns the map of the values' pages, whose boxes begin at the coordinates of PageValues.
CUtensorMap page_values_map(const AttentionArgs& args) {
  const int64_t row_bytes = int64_t{args.head_dim} * 2;
  const auto row = static_cast<cuuint64_t>(row_bytes);
  const auto* ahead =
      static_cast<const unsigned char*>(args.pages.values.data) - kPageTokens * row_bytes;
  return tensor_map<4>(
      ahead, args.q.dtype,
      {static_cast<cuuint64_t>(args.head_dim), PageValues::kRowExtent, PageValues::kShiftExtent,
       static_cast<cuuint64_t>(args.pages.keys.rows() / kPageTokens)},
      {row, row, kPageTokens * row}, {64, PageValues::kRowExtent, 1, 1});
}

}  // namespace

bool attention_pages_sm90_supported(const AttentionArgs& args, const PagedLaunch& how) {
  const int rows = args.head_dim <= 64 ? kPagesSm90Rows<64> : kPagesSm90Rows<128>;
  return how.counters != nullptr && args.head_dim <= 128 &&
         args.num_heads / args.num_kv_heads <= rows;
}

void prepare_attention_pages_sm90() {
  for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    for (int head_dim : {64, 128}) {
      for (bool rare : {false, true}) {
        dispatch_pages_sm90(dtype, head_dim, rare, [&]<class T, int kDim, bool kRare>() {
          CUDA_CHECK(cudaFuncSetAttribute(
              paged_attention_sm90_kernel<T, kDim, kRare>,
              cudaFuncAttributeMaxDynamicSharedMemorySize,
              static_cast<int>(PagesSm90Traits<T, kDim, kRare>::kSharedBytes)));
        });
      }
    }
  }
}

void launch_attention_pages_sm90(const AttentionArgs& args, const PagedLaunch& how,
                                 const KernelStream& stream) {
  PagesSm90Params params{paged_kernel_params(args, stream.caps), {}, {}, {}};
  params.counters = how.counters;
  const bool rare = has_rare_scores(args);
  dispatch_pages_sm90(args.q.dtype, args.head_dim, rare, [&]<class T, int kDim, bool kRare>() {
    using Traits = PagesSm90Traits<T, kDim, kRare>;
    params.slab_tokens = Traits::kRows / params.group;
    params.slots =
        static_cast<int>(args.queries.num_tokens / params.slab_tokens + args.queries.num_sequences);
    params.query_map = query_map(args, params.group, params.slab_tokens);
    params.key_map = matrix_tensor_map(args.pages.keys.data, args.q.dtype, args.pages.keys.rows(),
                                       args.head_dim, args.head_dim, Traits::kKeys, 64);
    params.value_map = page_values_map(args);
    const int64_t items = int64_t{params.slots} * args.num_kv_heads;
    launch_kernel(paged_attention_sm90_kernel<T, kDim, kRare>,
                  dim3(static_cast<unsigned>(std::min(items, int64_t{stream.caps.sm_count}))),
                  Traits::kThreads, Traits::kSharedBytes, stream, params);
  });
}

}  // namespace packhorse::cuda
