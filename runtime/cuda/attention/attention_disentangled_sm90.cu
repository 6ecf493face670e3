#include "cuda/attention/attention_disentangled.h"
#include "cuda/attention/attention_disentangled_sm90_kernel.cuh"

namespace packhorse::cuda {

void launch_attention_disentangled_sm90(const AttentionParams& params, cudaStream_t stream) {
  dispatch_dtype(params.dtype, [&]<class T>() {
    launch_disentangled<DisentangledSm90<T>>(disentangled_attention_sm90_kernel<T>, params, stream);
  });
}

}  // namespace packhorse::cuda
