// Kernel of attention_weights, in which a block has one query and each thread every kThreads-th
// key. It runs for few tokens that a text has already, so it takes the plain way.
#include <cstdint>
#include <type_traits>

#include "cuda/attention/weights/weights.h"
#include "cuda/common/float8.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/reduce.cuh"
#include "cuda/common/vector.cuh"

namespace packhorse::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPage = static_cast<int>(kPageTokens);

/// Product of a query in shared memory with a key in the dtype of queries.
template <class T>
__device__ float product(const float* query, const T* key, int columns) {
  float sum = 0;
  for (int c = 0; c < columns; c += kVectorSize) {
    float values[kVectorSize];
    load_vector(values, key + c);
#pragma unroll
    for (int i = 0; i < kVectorSize; ++i) sum = __fmaf_rn(query[c + i], values[i], sum);
  }
  return sum;
}

/// Product with a key in e4m3.
__device__ float product(const float* query, const uint8_t* key, int columns) {
  float sum = 0;
  for (int c = 0; c < columns; ++c) sum = __fmaf_rn(query[c], float8_to_float32(key[c]), sum);
  return sum;
}

/// T: dtype of queries. Key: that of pages, uint8_t for e4m3.
template <class T, class Key>
__global__ void __launch_bounds__(kThreads)
    attention_weights_kernel(const __grid_constant__ AttentionWeightsArgs args) {
  __shared__ float query[kMostWeightsColumns];
  __shared__ float scratch[2][32];
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int row = static_cast<int>(blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x);
  const T* const from =
      static_cast<const T*>(args.q.data) + row * args.q.row_stride + args.head * args.head_dim;
  for (int c = thread; c < args.head_dim; c += kThreads) query[c] = to_float(from[c]);
  __syncthreads();

  const int head = static_cast<int>(args.head) / (args.num_heads / args.num_kv_heads);
  const int num_keys = static_cast<int>(args.num_keys);
  const int32_t* const table = args.pages.table + args.sequence * args.pages.table_stride;
  const auto* const keys = static_cast<const Key*>(args.pages.keys.data);
  float* const out = static_cast<float*>(args.out.data) + row * args.out.row_stride;
  float largest[1] = {-INFINITY};
  for (int key = thread; key < num_keys; key += kThreads) {
    const int64_t place =
        (int64_t{table[key / kPage]} * args.num_kv_heads + head) * kPage + key % kPage;
    float score = product(query, keys + place * args.head_dim, args.head_dim) * args.scale;
    if constexpr (std::is_same_v<Key, uint8_t>) {
      score *= static_cast<const float*>(args.pages.key_scales.data)[place];
    }
    out[key] = score;
    largest[0] = fmaxf(largest[0], score);
  }
  group_max<kThreads>(largest, scratch[0]);
  float total[1] = {0};
  for (int key = thread; key < num_keys; key += kThreads) {
    const float weight = expf(out[key] - largest[0]);
    out[key] = weight;
    total[0] += weight;
  }
  group_sum<kThreads>(total, scratch[1]);
  for (int key = thread; key < num_keys; key += kThreads) out[key] = out[key] / total[0];
}

}  // namespace

void launch_attention_weights(const AttentionWeightsArgs& args, const KernelStream& stream) {
  if (args.q.rows() == 0) return;
  const auto blocks = static_cast<unsigned>(args.q.rows());
  dispatch_dtype(args.q.dtype, [&]<class T>() {
    if (args.pages.keys.dtype == DType::kFloat8) {
      launch_kernel(attention_weights_kernel<T, uint8_t>, blocks, kThreads, 0, stream, args);
    } else {
      launch_kernel(attention_weights_kernel<T, T>, blocks, kThreads, 0, stream, args);
    }
  });
}

}  // namespace packhorse::cuda
