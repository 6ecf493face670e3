// Launches the Hopper kernel of disentangled attention (attention/disentangled/sm90_kernel.cuh).
#include "cuda/attention/disentangled/disentangled.h"
#include "cuda/attention/disentangled/sm90_kernel.cuh"

namespace packhorse::cuda {

void launch_attention_disentangled_sm90(const AttentionArgs& args, const KernelStream& stream) {
  dispatch_dtype(args.q.dtype, [&]<class T>() {
    using Traits = DisentangledSm90<T>;
    const dim3 grid(static_cast<unsigned>(slab_slots(args, Traits::kRows) * args.num_heads));
    launch_disentangled<Traits>(disentangled_attention_sm90_kernel<T>, grid, args, stream);
  });
}

}  // namespace packhorse::cuda
