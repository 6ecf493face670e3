// The Hopper GEMMs that keep the maximum over each sequence's rows (gemm/sm90/pool.cuh).
#include <cutlass/numeric_types.h>

#include "cuda/gemm/sm90/launch.h"

namespace packhorse::cuda {

void launch_gemm_pooled_sm90(const GemmParams& params, const KernelStream& stream) {
  if (params.rows == 0 || params.pool.num_sequences == 0) return;
  // One tile serves all sizes: 128x192 was no faster, because its accumulators leave few registers
  // for the maxima. Panels of 8 tile columns keep the weights in the L2 cache beside all rows,
  // however large the vocabulary is.
  const auto launch = [&]<class Element>() {
    using Traits = GemmTraits<Element, 128, 128, 1, true, GemmEpilogue::kPooled>;
    launch_gemm_kernel<Traits>(params, 8, stream);
  };
  params.dtype == DType::kFloat16 ? launch.template operator()<cutlass::half_t>()
                                  : launch.template operator()<cutlass::bfloat16_t>();
}

}  // namespace packhorse::cuda
