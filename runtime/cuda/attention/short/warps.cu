// Launches the kernels of attention/short/kernel.cuh.
#include <algorithm>

#include "core/math.h"
#include "cuda/attention/short/kernel.cuh"
#include "cuda/attention/short/warps.h"
#include "cuda/common/launch.cuh"

namespace packhorse::cuda {
namespace {

template <class T, int kDim, bool kTerm, bool kFloat8>
void launch(const PortableParams& params, const KernelStream& stream) {
  using Traits = WarpTraits<kDim, kTerm>;
  const AttentionArgs& args = params.args;
  const int64_t heads = args.queries.num_sequences * args.num_heads;
  const int64_t blocks = std::min(ceil_div(heads, Traits::kWarps),
                                  int64_t{stream.caps.sm_count} * Traits::kBlocksPerSm);
  launch_kernel(warp_attention_kernel<T, kDim, kTerm, kFloat8>, dim3(static_cast<unsigned>(blocks)),
                Traits::kThreads, 0, stream, params);
}

template <class T, int kDim>
void launch_dim(const PortableParams& params, const KernelStream& stream) {
  const bool term = params.args.term.kind != ScoreTermKind::kNone;
  if constexpr (kDim <= kMostFloat8HeadDim) {
    if (params.out_factor != 0) {
      return term ? launch<T, kDim, true, true>(params, stream)
                  : launch<T, kDim, false, true>(params, stream);
    }
  }
  term ? launch<T, kDim, true, false>(params, stream)
       : launch<T, kDim, false, false>(params, stream);
}

}  // namespace

void launch_attention_warps(const AttentionArgs& args, const KernelStream& stream) {
  if (args.queries.num_tokens == 0 || args.queries.num_sequences == 0) return;
  const PortableParams params{args, key_window(args.mask), {0, kWarpTokens}, float8_factor(args)};
  dispatch_dtype(args.q.dtype, [&]<class T>() {
    if (args.head_dim <= 32) return launch_dim<T, 32>(params, stream);
    if (args.head_dim <= 64) return launch_dim<T, 64>(params, stream);
    launch_dim<T, 128>(params, stream);
  });
}

}  // namespace packhorse::cuda
