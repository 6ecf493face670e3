// Instantiations of their own, because those of cuda/attention/sm90/d*.cu are many.
#include <cutlass/numeric_types.h>

#include "attention_kernels.h"
#include "cuda/attention/sm90/dispatch.h"

namespace packhorse::cuda {

void launch_attention_128(const AttentionParams& params) {
  launch_attention_kernel<AttentionPlanTraits<cutlass::half_t, 128, AttentionPlan::kPingPong>>(
      params, nullptr);
}
void launch_attention_32(const AttentionParams& params) {
  launch_attention_kernel<AttentionPlanTraits<cutlass::half_t, 32, AttentionPlan::kManyBlocks>>(
      params, nullptr);
}

}  // namespace packhorse::cuda
