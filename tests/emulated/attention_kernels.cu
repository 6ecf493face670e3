// Instantiations of their own, because those of attention_sm90_d*.cu are many.
#include <cutlass/numeric_types.h>

#include "attention_kernels.h"
#include "cuda/attention/sm90/dispatch.h"

namespace packhorse::cuda {

void launch_attention_128(const AttentionArgs& args, int32_t* next_tile, int sm_count) {
  launch_attention_kernel<AttentionPlanTraits<cutlass::half_t, 128, AttentionPlan::kPingPong>>(
      args, {.next_tile = next_tile, .sm_count = sm_count}, nullptr);
}
void launch_attention_32(const AttentionArgs& args, int32_t* next_tile, int sm_count) {
  launch_attention_kernel<AttentionPlanTraits<cutlass::half_t, 32, AttentionPlan::kManyBlocks>>(
      args, {.next_tile = next_tile, .sm_count = sm_count}, nullptr);
}

}  // namespace packhorse::cuda
