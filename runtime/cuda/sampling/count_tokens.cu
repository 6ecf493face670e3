// Counting the tokens that penalties look at.
#include "cuda/common/launch.cuh"
#include "cuda/sampling/sampling.h"

namespace packhorse::cuda {
namespace {

__global__ void __launch_bounds__(256)
    clear_counts_kernel(const __grid_constant__ CountTokensArgs args) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  auto* counts =
      static_cast<int32_t*>(args.counts.data) + args.clear[blockIdx.y] * args.counts.row_stride;
  const int64_t token = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x;
  if (token < args.counts.shape[1]) counts[token] = 0;
}

__global__ void __launch_bounds__(256)
    count_tokens_kernel(const __grid_constant__ CountTokensArgs args) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x;
  if (i >= args.num_tokens || args.slots[i] < 0) return;
  int32_t* count = static_cast<int32_t*>(args.counts.data) +
                   args.slots[i] * args.counts.row_stride + args.ids[i];
  if (args.of_prompt) {
    atomicOr(count, CountTokensArgs::kSeen);
  } else {
    atomicAdd(count, 1);
  }
}

}  // namespace

void launch_count_tokens(const CountTokensArgs& args, const KernelStream& stream) {
  if (args.num_clear > 0) {
    const dim3 grid(block_count(args.counts.columns(), 256), static_cast<unsigned>(args.num_clear));
    launch_kernel(clear_counts_kernel, grid, 256, 0, stream, args);
  }
  if (args.num_tokens > 0) {
    launch_kernel(count_tokens_kernel, dim3(block_count(args.num_tokens, 256)), 256, 0, stream,
                  args);
  }
}

}  // namespace packhorse::cuda
