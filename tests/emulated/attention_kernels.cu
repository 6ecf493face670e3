// Instantiations of their own, because those of attention_sm90_d*.cu are many.
#include <cutlass/numeric_types.h>

#include "attention_kernels.h"
#include "cuda/attention/sm90/dispatch.h"
#include "emulated_stream.h"

namespace packhorse::cuda {

void launch_attention_128(const AttentionParams& params) {
  launch_attention_kernel<AttentionPlanTraits<cutlass::half_t, 128, AttentionPlan::kPingPong>>(
      params, emulated_stream());
}
void launch_attention_32(const AttentionParams& params) {
  launch_attention_kernel<AttentionPlanTraits<cutlass::half_t, 32, AttentionPlan::kManyBlocks>>(
      params, emulated_stream());
}

}  // namespace packhorse::cuda
