#include <cutlass/numeric_types.h>

#include "cuda/gemm/gemm_sm90_launch.h"

namespace packhorse::cuda {

void launch_gemm_pooled_sm90(const GemmParams& params, cudaStream_t stream) {
  if (params.rows == 0 || params.pool.num_sequences == 0) return;
  // One tile serves all sizes: 128x192 was no faster, its accumulators leave the maxima few
  // registers. Weights of 8 tile columns stay in L2 beside all rows, whatever the vocabulary.
  const auto launch = [&]<class Element>() {
    using Traits = GemmTraits<Element, 128, 128, 1, true, GemmEpilogue::kPooled>;
    launch_gemm_kernel<Traits>(params, 8, stream);
  };
  params.dtype == DType::kFloat16 ? launch.template operator()<cutlass::half_t>()
                                  : launch.template operator()<cutlass::bfloat16_t>();
}

}  // namespace packhorse::cuda
