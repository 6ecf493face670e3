#include "cuda/attention/attention_pages_float8.cuh"
#include "cuda/attention/attention_pages_float8.h"
#include "cuda/attention/attention_pages_launch.cuh"

namespace packhorse::cuda {
namespace {

template <class T, int kDim>
using Prefill = Float8PagedTiles<T, Float8PagedTraits<kDim, kPrefillWarps>>;
template <class T, int kDim, int kRows>
using Few = Float8FewTiles<T, Float8FewTraits<kDim, kRows>>;

}  // namespace

void prepare_attention_pages_float8(size_t most_shared_bytes) {
  allow_pages_shared_memory<Prefill, Few>(most_shared_bytes);
}

size_t few_float8_shared_bytes(const PagedAttentionParams& args) {
  return few_shared_bytes<Few>(args);
}

void launch_prefill_float8(const PagedAttentionParams& args, cudaStream_t stream) {
  dispatch_pages(args.dtype, args.head_dim, [&]<class T, int kDim>() {
    launch_pages_prefill<Prefill<T, kDim>>(args, stream);
  });
}

void launch_few_float8(const PagedKernelParams& params, cudaStream_t stream) {
  const PagedAttentionParams& args = params.args;
  dispatch_pages(args.dtype, args.head_dim, [&]<class T, int kDim>() {
    slab_rows(args) == 8 ? launch_pages_few<Few<T, kDim, 8>>(params, stream)
                         : launch_pages_few<Few<T, kDim, 16>>(params, stream);
  });
}

}  // namespace packhorse::cuda
