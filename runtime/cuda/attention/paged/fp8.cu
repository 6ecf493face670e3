#include "cuda/attention/paged/fp8.h"
#include "cuda/attention/paged/fp8_decode_tiles.cuh"
#include "cuda/attention/paged/fp8_tiles.cuh"
#include "cuda/attention/paged/launch.cuh"

namespace packhorse::cuda {
namespace {

template <class T, int kDim>
using Prefill = Float8PagedTiles<T, Float8PagedTraits<kDim, kPrefillWarps>>;
template <class T, int kDim, int kRows>
using Decode = Float8DecodeTiles<T, Float8DecodeTraits<kDim, kRows>>;

}  // namespace

void prepare_attention_pages_float8(const DeviceCaps& caps) {
  allow_pages_shared_memory<Prefill, Decode>(caps.shared_bytes);
}

size_t decode_float8_shared_bytes(const AttentionArgs& args) {
  return decode_shared_bytes<Decode>(args);
}

void launch_prefill_float8(const AttentionArgs& args, const KernelStream& stream) {
  dispatch_pages(args.q.dtype, args.head_dim, [&]<class T, int kDim>() {
    launch_pages_prefill<Prefill<T, kDim>>(args, stream);
  });
}

void launch_decode_float8(const PagedKernelParams& params, const KernelStream& stream) {
  const AttentionArgs& args = params.args;
  dispatch_pages(args.q.dtype, args.head_dim, [&]<class T, int kDim>() {
    slab_rows(args) == 8 ? launch_paged_decode<Decode<T, kDim, 8>>(params, stream)
                         : launch_paged_decode<Decode<T, kDim, 16>>(params, stream);
  });
}

}  // namespace packhorse::cuda
