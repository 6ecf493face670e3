// Instantiations of their own, because those of cuda/attention/sm90/d*.cu are many.
#include <cutlass/numeric_types.h>

#include "attention_kernels.h"
#include "cuda/attention/sm90/dispatch.h"
#include "emulated_stream.h"

namespace packhorse::cuda {

void launch_attention_128(const AttentionArgs& args, int32_t* next_tile, int sm_count) {
  launch_attention_kernel<AttentionPlanTraits<cutlass::half_t, 128, AttentionPlan::kPingPong>>(
      args, {.next_tile = next_tile}, emulated_stream(sm_count));
}
void launch_attention_32(const AttentionArgs& args, int32_t* next_tile, int sm_count) {
  launch_attention_kernel<AttentionPlanTraits<cutlass::half_t, 32, AttentionPlan::kManyBlocks>>(
      args, {.next_tile = next_tile}, emulated_stream(sm_count));
}

}  // namespace packhorse::cuda
