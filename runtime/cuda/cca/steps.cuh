// Steps of compressed convolutional attention that its kernels by tensor cores share. Each gives
// the same bits in all of them.
#pragma once

#include "cuda/common/rotation.cuh"
#include "cuda/common/vector.cuh"
#include "ops/args/cca.h"

namespace packhorse::cuda {

/// Computes four columns of the first convolution, rounded. `first`, `second`: the latents of a
/// token and of the next. `weights`: those of both, and the bias.
template <class T>
__device__ uint2 depthwise(const uint2& first, const uint2& second, const float4 (&weights)[3]) {
  using Pair = typename Element<T>::Pair;
  const float2 a[2] = {to_float2(reinterpret_cast<const Pair&>(first.x)),
                       to_float2(reinterpret_cast<const Pair&>(first.y))};
  const float2 b[2] = {to_float2(reinterpret_cast<const Pair&>(second.x)),
                       to_float2(reinterpret_cast<const Pair&>(second.y))};
  const auto sum = [](float w, float x, float v, float y, float bias) {
    return __fmaf_rn(v, y, __fmaf_rn(w, x, bias));
  };
  const auto& [w, v, bias] = weights;
  const Pair low = Element<T>::pair(sum(w.x, a[0].x, v.x, b[0].x, bias.x),
                                    sum(w.y, a[0].y, v.y, b[0].y, bias.y));
  const Pair high = Element<T>::pair(sum(w.z, a[1].x, v.z, b[1].x, bias.z),
                                     sum(w.w, a[1].y, v.w, b[1].y, bias.w));
  return {reinterpret_cast<const uint32_t&>(low), reinterpret_cast<const uint32_t&>(high)};
}

/// Returns the Euclidean norm that a head is brought to.
__device__ inline float length_of_head(const CcaArgs& args, int head) {
  return sqrtf(static_cast<float>(args.model_dim)) *
         (head < args.num_heads ? 1.0f : args.temperature[head - args.num_heads]);
}

/// Returns the factor that brings a head whose squares sum up to `squares` to its length. A NaN
/// stays one.
__device__ inline float factor_to_length(float length, float squares) {
  constexpr float kSmallest = 0x1p-23f;
  const float norm = sqrtf(squares);
  return length / (norm < kSmallest ? kSmallest : norm);
}

/// Rotates the pairs among eight columns of a head, the first of them `column`, that lie before
/// column `dims`. `frequencies`, one for each pair of the head, are aligned to 16 bytes.
__device__ inline void rotate_vector(float (&values)[kVectorSize], int column, int dims,
                                     float position, const float* frequencies) {
  const auto rotate_pair = [&](int c, float frequency) {
    rotate(values[c], values[c + 1], cos_sin(position, frequency));
  };
  if (column + kVectorSize <= dims) {
    const float4 four = *reinterpret_cast<const float4*>(frequencies + column / 2);
    rotate_pair(0, four.x);
    rotate_pair(2, four.y);
    rotate_pair(4, four.z);
    rotate_pair(6, four.w);
  } else if (column < dims) {
#pragma unroll
    for (int c = 0; c < kVectorSize - 2; c += 2) {
      if (column + c < dims) rotate_pair(c, frequencies[(column + c) / 2]);
    }
  }
}

}  // namespace packhorse::cuda
