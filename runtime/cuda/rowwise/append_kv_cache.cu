#include <cfloat>

#include "cuda/common/float8.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/reduce.cuh"
#include "cuda/common/token_position.cuh"
#include "cuda/common/vector.cuh"
#include "cuda/rowwise/rowwise.h"

namespace packhorse::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTokens = kThreads / 32;  // tokens of a block: one for each warp

/// Finds this warp's token, and the row of its first head in the pages as a matrix [pages *
/// num_kv_heads * kPageTokens, head_dim]. The next head's row is kPageTokens further. Returns false
/// where there is no such token.
__device__ bool find_token(const AppendKvCacheArgs& args, int& token, int64_t& first_row) {
  token = static_cast<int>(blockIdx.x) * kTokens + threadIdx.x / 32;
  const TokenCounts counts(args.batch);
  if (token >= counts.tokens) return false;
  const int32_t* begins = args.batch.cu_seqlens;
  const int sequence = warp_search(counts.sequences, token, [&](int i) { return begins[i]; });
  const int position = args.pages.kv_lens[sequence] - begins[sequence + 1] + token;
  constexpr int kPage = static_cast<int>(kPageTokens);
  const int64_t page = args.pages.table[sequence * args.pages.table_stride + position / kPage];
  first_row = page * args.num_kv_heads * kPage + position % kPage;
  return true;
}

/// A warp copies the keys and the values of one token, 16 bytes per lane at a time. Both 16-bit
/// dtypes are copied as integers.
__global__ void __launch_bounds__(kThreads)
    append_kv_cache_kernel(const __grid_constant__ AppendKvCacheArgs args) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  int token;
  int64_t first_row;
  if (!find_token(args, token, first_row)) return;
  const int columns = args.num_kv_heads * args.head_dim;
  const auto copy = [&](const TensorView& from, const TensorView& to) {
    const auto* row = static_cast<const uint16_t*>(from.data) + token * from.row_stride;
    auto* pages = static_cast<uint16_t*>(to.data);
    for (int c = static_cast<int>(threadIdx.x) % 32 * kVectorSize; c < columns;
         c += 32 * kVectorSize) {
      const int64_t to_row = first_row + c / args.head_dim * static_cast<int>(kPageTokens);
      *reinterpret_cast<uint4*>(pages + to_row * args.head_dim + c % args.head_dim) =
          *reinterpret_cast<const uint4*>(row + c);
    }
  };
  copy(args.k, args.pages.keys);
  copy(args.v, args.pages.values);
}

/// Lanes that quantise a head together, eight elements each at a time.
__host__ __device__ int lanes_of_head(int head_dim) {
  return head_dim <= 64 ? 8 : head_dim <= 128 ? 16 : 32;
}

/// A warp quantises some heads of one token's keys and values, as the CPU's quantize_head does: a
/// head with a number that is not finite has the scale NaN.
template <class T>
__global__ void __launch_bounds__(kThreads)
    append_float8_kernel(const __grid_constant__ AppendKvCacheArgs args) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  int token;
  int64_t first_row;
  if (!find_token(args, token, first_row)) return;
  const int lanes = lanes_of_head(args.head_dim);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // Numbers of heads: those of keys first, then those of values.
  const int number = (static_cast<int>(blockIdx.y) * 32 + lane) / lanes;
  const bool of_keys = number < args.num_kv_heads;
  const int head = of_keys ? number : number - args.num_kv_heads;
  const int columns = head < args.num_kv_heads ? args.head_dim : 0;
  const TensorView& rows = of_keys ? args.k : args.v;
  const T* from = static_cast<const T*>(rows.data) + token * rows.row_stride + head * args.head_dim;
  const int first = lane % lanes * kVectorSize;
  const int step = lanes * kVectorSize;

  float most = kFloat8Least;
  bool finite = true;
  for (int c = first; c < columns; c += step) {
    float x[kVectorSize];
    load_vector(x, from + c);
#pragma unroll
    for (const float value : x) {
      most = fmaxf(most, fabsf(value));
      finite = finite && fabsf(value) <= FLT_MAX;
    }
  }
  for (int mask = lanes / 2; mask > 0; mask /= 2) {
    most = fmaxf(most, __shfl_xor_sync(kFullWarp, most, mask));
    finite = __shfl_xor_sync(kFullWarp, static_cast<int>(finite), mask) != 0 && finite;
  }
  if (columns == 0) return;

  const float factor = __fdiv_rn(kFloat8Most, most);
  const int64_t row = first_row + head * static_cast<int>(kPageTokens);
  const PagedKvCache& pages = args.pages;
  auto* to = static_cast<uint8_t*>((of_keys ? pages.keys : pages.values).data) + row * columns;
  for (int c = first; c < columns; c += step) {
    float x[kVectorSize];
    load_vector(x, from + c);
    uint2 bytes = {0, 0};
#pragma unroll
    for (int i = 0; i < kVectorSize; ++i) {
      const float value = __fmul_rn(x[i], factor);
      const uint32_t byte = float32_to_float8(fminf(fmaxf(value, -kFloat8Most), kFloat8Most));
      (i < 4 ? bytes.x : bytes.y) |= byte << (i % 4 * 8);
    }
    *reinterpret_cast<uint2*>(to + c) = bytes;
  }
  if (first == 0) {
    auto* scales = static_cast<float*>((of_keys ? pages.key_scales : pages.value_scales).data);
    scales[row] = finite ? __fmul_rn(most, 1 / kFloat8Most) : NAN;
  }
}

}  // namespace

void launch_append_kv_cache(const AppendKvCacheArgs& args, const KernelStream& stream) {
  if (args.batch.num_tokens == 0) return;
  const auto blocks = block_count(args.batch.num_tokens, kTokens);
  if (args.pages.keys.dtype != DType::kFloat8) {
    return launch_kernel(append_kv_cache_kernel, dim3(blocks), kThreads, 0, stream, args);
  }
  const int lanes = 2 * args.num_kv_heads * lanes_of_head(args.head_dim);
  const dim3 grid(blocks, block_count(lanes, 32));
  dispatch_dtype(args.k.dtype, [&]<class T>() {
    launch_kernel(append_float8_kernel<T>, grid, kThreads, 0, stream, args);
  });
}

}  // namespace packhorse::cuda
