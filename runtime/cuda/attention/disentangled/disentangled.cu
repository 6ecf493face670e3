// Launches the portable kernel of disentangled attention (attention/disentangled/kernel.cuh) that
// has the smallest tile for the size of a head.
#include "cuda/attention/disentangled/disentangled.h"
#include "cuda/attention/disentangled/kernel.cuh"

namespace packhorse::cuda {

void launch_attention_disentangled(const AttentionArgs& args, const KernelStream& stream) {
  dispatch_dtype(args.q.dtype, [&]<class T>() {
    const auto launch = [&]<int kDim>() {
      using Traits = DisentangledTraits<kDim>;
      const dim3 grid(static_cast<unsigned>(slab_slots(args, Traits::kRows)),
                      static_cast<unsigned>(args.num_heads));
      launch_disentangled<Traits>(disentangled_attention_kernel<T, kDim>, grid, args, stream);
    };
    if (args.head_dim <= 32) return launch.template operator()<32>();
    if (args.head_dim <= 64) return launch.template operator()<64>();
    launch.template operator()<128>();
  });
}

}  // namespace packhorse::cuda
