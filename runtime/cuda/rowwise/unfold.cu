// Kernel that puts the rows around each token side by side. A warp has one token: it finds the
// token's sequence by a search in cu_seqlens, and copies `width` rows, 16 bytes per lane at a time;
// rows outside of the sequence are zeros.
#include "cuda/common/launch.cuh"
#include "cuda/common/reduce.cuh"
#include "cuda/common/token_position.cuh"
#include "cuda/common/vector.cuh"
#include "cuda/rowwise/rowwise.h"

namespace packhorse::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads) unfold_kernel(const __grid_constant__ UnfoldArgs args) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int token = static_cast<int>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  const TokenCounts counts(args.batch);
  if (token >= counts.tokens) return;
  const int32_t* begins = args.batch.cu_seqlens;
  const int sequence = warp_search(counts.sequences, token, [&](int i) { return begins[i]; });
  const int64_t begin = int64_t{args.stride} * begins[sequence];
  const int64_t end = int64_t{args.stride} * begins[sequence + 1];
  const auto columns = static_cast<int>(args.x.shape[1]);
  T* out = static_cast<T*>(args.out.data) + token * args.out.row_stride;
  for (int i = 0; i < args.width; ++i, out += columns) {
    const int64_t row = int64_t{args.stride} * token - args.width / 2 + i;
    const bool inside = row >= begin && row < end;
    const T* from = static_cast<const T*>(args.x.data) + row * args.x.row_stride;
    for (int c = static_cast<int>(threadIdx.x) % 32 * kVectorSize; c < columns;
         c += 32 * kVectorSize) {
      *reinterpret_cast<uint4*>(out + c) =
          inside ? *reinterpret_cast<const uint4*>(from + c) : uint4{};
    }
  }
}

}  // namespace

void launch_unfold(const UnfoldArgs& args, const KernelStream& stream) {
  constexpr int kTokens = kThreads / 32;
  const dim3 blocks(block_count(args.batch.num_tokens, kTokens));
  dispatch_dtype(args.x.dtype, [&]<class T>() {
    launch_kernel(unfold_kernel<T>, blocks, kThreads, 0, stream, args);
  });
}

}  // namespace packhorse::cuda
