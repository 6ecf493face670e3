#include "cuda/launch.cuh"
#include "cuda/rows/append_kv.h"
#include "cuda/rows/reduce.cuh"
#include "cuda/rows/row.cuh"
#include "cuda/rows/token_position.cuh"

namespace packhorse::cuda {
namespace {

constexpr int kThreads = 256;

/// A warp copies the keys and the values of one token, 16 bytes by each lane at a time. The
/// elements are 16 bits wide, whatever they mean.
__global__ void __launch_bounds__(kThreads)
    append_kv_kernel(const __grid_constant__ AppendKvArgs args) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int token = static_cast<int>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  const TokenCounts counts(args.batch);
  if (token >= counts.tokens) return;
  const int32_t* begins = args.batch.cu_seqlens;
  const int sequence = warp_search(counts.sequences, token, [&](int i) { return begins[i]; });
  const int position = args.pages.kv_lens[sequence] - begins[sequence + 1] + token;
  constexpr int kTokens = static_cast<int>(kPageTokens);
  const int64_t page = args.pages.table[sequence * args.pages.table_stride + position / kTokens];
  const int64_t first_row = page * args.num_kv_heads * kTokens + position % kTokens;
  const int columns = args.num_kv_heads * args.head_dim;
  const auto copy = [&](const TensorView& from, const TensorView& to) {
    const auto* row = static_cast<const uint16_t*>(from.data) + token * from.row_stride;
    auto* pages = static_cast<uint16_t*>(to.data);
    for (int c = static_cast<int>(threadIdx.x) % 32 * kVectorSize; c < columns;
         c += 32 * kVectorSize) {
      const int64_t to_row = first_row + c / args.head_dim * kTokens;
      *reinterpret_cast<uint4*>(pages + to_row * args.head_dim + c % args.head_dim) =
          *reinterpret_cast<const uint4*>(row + c);
    }
  };
  copy(args.k, args.pages.keys);
  copy(args.v, args.pages.values);
}

}  // namespace

void launch_append_kv(const AppendKvArgs& args, cudaStream_t stream) {
  if (args.batch.num_tokens == 0) return;
  constexpr int kTokens = kThreads / 32;
  const dim3 blocks(static_cast<unsigned>((args.batch.num_tokens + kTokens - 1) / kTokens));
  launch_kernel(append_kv_kernel, blocks, kThreads, 0, stream, args);
}

}  // namespace packhorse::cuda
