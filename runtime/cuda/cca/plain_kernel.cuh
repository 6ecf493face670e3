// Heads of compressed convolutional attention of any size: every sum in float32, by one thread.
#pragma once

#include "cuda/cca/latent_rows.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/reduce.cuh"
#include "cuda/common/rotation.cuh"

namespace packhorse::cuda {

/// Tokens of a block; each weight that it reads serves all of them.
inline constexpr int kPlainTokens = 4;
inline constexpr int kPlainThreads = 128;

/// Returns the floats of shared memory: for each token, the first convolution at every tap of the
/// second, and the head.
inline size_t plain_floats(const CcaArgs& args) {
  return static_cast<size_t>(kPlainTokens * (args.grouped_width + 1) * args.head_dim);
}

/// A block has kPlainTokens tokens of one head; those of the last head number, which is no head,
/// shift values. Sums begin with the bias and take their products in ascending order.
template <class T>
struct CcaPlain {
  const CcaArgs& args;
  const int head;
  float* window;  // [kPlainTokens, grouped_width, head_dim]
  float* sums;    // [kPlainTokens, head_dim]

  /// Computes the first convolution of a token.
  __device__ void convolve_depthwise(int row, int token, const LatentPlace& place) const {
    const int64_t column = int64_t{head} * args.head_dim;
    const int64_t mixed = args.mixed_columns();
    float* to = window + row * args.grouped_width * args.head_dim;
    for (int tap = 0; tap < args.grouped_width; ++tap) {
      const int oldest = static_cast<int>(args.reach()) - tap;
      for (int c = threadIdx.x; c < args.head_dim; c += kPlainThreads) {
        float sum = args.depthwise_bias[column + c];
        for (int j = 0; j < args.depthwise_width; ++j) {
          const T* x = latents_before<T>(args, token, place, oldest - j);
          const float value = x == nullptr ? 0.0f : to_float(x[column + c]);
          sum = __fmaf_rn(args.depthwise[j * mixed + column + c], value, sum);
        }
        to[tap * args.head_dim + c] = sum;
      }
    }
  }

  __device__ void convolve_grouped() const {
    const int inputs = args.grouped_width * args.head_dim;
    const int64_t column = int64_t{head} * args.head_dim;
    const T* const weights = static_cast<const T*>(args.grouped.data) + column * inputs;
    for (int c = threadIdx.x; c < args.head_dim; c += kPlainThreads) {
      float sum[kPlainTokens];
      for (float& one : sum) one = args.grouped_bias[column + c];
      for (int i = 0; i < inputs; ++i) {
        const float weight = to_float(weights[int64_t{i} * args.head_dim + c]);
#pragma unroll
        for (int r = 0; r < kPlainTokens; ++r) {
          sum[r] = __fmaf_rn(window[r * inputs + i], weight, sum[r]);
        }
      }
#pragma unroll
      for (int r = 0; r < kPlainTokens; ++r) sums[r * args.head_dim + c] = sum[r];
    }
  }

  /// Adds the mean of latents to the sums of a token, brings them to their length and rotates them,
  /// by a warp.
  __device__ void finish(int row, int token) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int group = args.num_heads / args.num_kv_heads;
    const bool query = head < args.num_heads;
    const int others = query ? 1 : group;
    const int other = query ? args.num_heads + head / group : (head - args.num_heads) * group;
    const float share = 0.5f / static_cast<float>(others);
    const T* const latents = latents_of<T>(args, token);
    float* const sum = sums + row * args.head_dim;
    float squares = 0;
    for (int c = lane; c < args.head_dim; c += 32) {
      float value = __fmaf_rn(0.5f, to_float(latents[int64_t{head} * args.head_dim + c]), sum[c]);
      for (int o = 0; o < others; ++o) {
        const float x = to_float(latents[int64_t{other + o} * args.head_dim + c]);
        value = __fmaf_rn(share, x, value);
      }
      sum[c] = value;
      squares = __fmaf_rn(value, value, squares);
    }
    const float norm = sqrtf(warp_sum(squares));
    const float length = sqrtf(static_cast<float>(args.model_dim)) *
                         (query ? 1.0f : args.temperature[head - args.num_heads]);
    constexpr float kSmallest = 0x1p-23f;
    const float factor = length / (norm < kSmallest ? kSmallest : norm);  // a NaN stays one
    const bool rotated = args.rotation.data != nullptr;
    const float position =
        rotated ? static_cast<const float*>(args.rotation.data)[token * args.rotation.row_stride]
                : 0.0f;
    T* const out = static_cast<T*>(args.out.data) + token * args.out.row_stride +
                   int64_t{head} * args.head_dim;
    __syncwarp();
    for (int c = 2 * lane; c < args.head_dim; c += 64) {
      float a = sum[c] * factor;
      float b = sum[c + 1] * factor;
      if (rotated && c < args.dims) rotate(a, b, cos_sin(position, args.frequencies[c / 2]));
      out[c] = Element<T>::from(a);
      out[c + 1] = Element<T>::from(b);
    }
  }
};

template <class T, bool kVectors>
__global__ void __launch_bounds__(kPlainThreads)
    cca_plain_kernel(const __grid_constant__ CcaArgs args) {
  extern __shared__ float cca_shared[];
  wait_for_previous_kernel();
  let_next_kernel_start();
  const TokenCounts counts(args.batch);
  const auto tokens = static_cast<int>(counts.tokens);
  const int first = static_cast<int>(blockIdx.x) * kPlainTokens;
  const int rows = min(kPlainTokens, tokens - first);
  const int head = static_cast<int>(blockIdx.y);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  static_assert(kPlainThreads / 32 == kPlainTokens);
  if (rows <= 0) return;
  if (head == args.num_heads + args.num_kv_heads) {
    if (warp >= rows) return;
    const LatentPlace place(args, counts.sequences, first + warp);
    return shift_values<kVectors>(args, first + warp, delayed_values<T>(args, first + warp, place));
  }
  const int inputs = args.grouped_width * args.head_dim;
  const CcaPlain<T> plain{args, head, cca_shared, cca_shared + kPlainTokens * inputs};
  for (int row = 0; row < kPlainTokens; ++row) {
    // Rows beyond the batch are computed of its last one, and not stored.
    const int token = first + min(row, rows - 1);
    plain.convolve_depthwise(row, token, LatentPlace(args, counts.sequences, token));
  }
  __syncthreads();
  plain.convolve_grouped();
  __syncthreads();
  if (warp < rows) plain.finish(warp, first + warp);
}

/// Keeps the latents that later steps need, after all blocks have read the rows that it replaces. A
/// warp has one token.
template <class T, bool kVectors>
__global__ void __launch_bounds__(256) keep_latents_kernel(const __grid_constant__ CcaArgs args) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const TokenCounts counts(args.batch);
  const int token = static_cast<int>(blockIdx.x) * 8 + static_cast<int>(threadIdx.x) / 32;
  if (token >= counts.tokens) return;
  const LatentPlace place(args, counts.sequences, token);
  if (!is_kept(args.pages, token, place)) return;
  const auto mixed = static_cast<int>(args.mixed_columns());
  const T* from = latents_of<T>(args, token);
  T* to = state_of<T>(args.pages, place.sequence, place.position);
  copy_by_warp<kVectors, T>(to, from, nullptr, mixed);
  copy_by_warp<kVectors, T>(to + mixed, from + mixed + args.delayed_column, nullptr,
                            static_cast<int>(args.state_columns()) - mixed);
}

}  // namespace packhorse::cuda
