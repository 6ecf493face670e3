// Vectors of eight elements, the 16 bytes of 16-bit numbers that a thread accesses at a time, and
// the two dtypes that CUDA computes in.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "core/format.h"
#include "packhorse/error.h"
#include "packhorse/types.h"

namespace packhorse::cuda {

inline constexpr int kVectorSize = 8;  // elements of a vector

__device__ inline float2 to_float2(__half2 pair) { return __half22float2(pair); }
__device__ inline float2 to_float2(__nv_bfloat162 pair) { return __bfloat1622float2(pair); }
__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(__half value) { return __half2float(value); }
__device__ inline float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

/// Rounds float32 to the elements of a tensor, one at a time or in pairs.
template <class T>
struct Element;
template <>
struct Element<float> {
  __device__ static float from(float value) { return value; }
};
template <>
struct Element<__half> {
  using Pair = __half2;
  __device__ static __half from(float value) { return __float2half_rn(value); }
  __device__ static Pair pair(float a, float b) { return __floats2half2_rn(a, b); }
};
template <>
struct Element<__nv_bfloat16> {
  using Pair = __nv_bfloat162;
  __device__ static __nv_bfloat16 from(float value) { return __float2bfloat16_rn(value); }
  __device__ static Pair pair(float a, float b) { return __floats2bfloat162_rn(a, b); }
};

/// Converts eight 16-bit elements to float32.
template <class T>
__device__ void unpack(float (&to)[kVectorSize], const uint4& bits) {
  const auto* pairs = reinterpret_cast<const typename Element<T>::Pair*>(&bits);
#pragma unroll
  for (int i = 0; i < kVectorSize / 2; ++i) {
    const float2 pair = to_float2(pairs[i]);
    to[2 * i] = pair.x;
    to[2 * i + 1] = pair.y;
  }
}

/// Loads the eight elements at `from`, which is aligned to 16 bytes.
template <class T>
__device__ void load_vector(float (&to)[kVectorSize], const T* from) {
  unpack<T>(to, *reinterpret_cast<const uint4*>(from));
}
__device__ inline void load_vector(float (&to)[kVectorSize], const float* from) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float4 quad = reinterpret_cast<const float4*>(from)[i];
    to[4 * i] = quad.x;
    to[4 * i + 1] = quad.y;
    to[4 * i + 2] = quad.z;
    to[4 * i + 3] = quad.w;
  }
}

/// Adds the eight elements at `from` to `to`.
template <class T>
__device__ void add_vector(float (&to)[kVectorSize], const T* from) {
  float more[kVectorSize];
  load_vector(more, from);
#pragma unroll
  for (int i = 0; i < kVectorSize; ++i) to[i] += more[i];
}

/// Rounds eight numbers to T and stores them at `to`, which is aligned to 16 bytes.
template <class T>
__device__ void store_vector(T* to, const float (&from)[kVectorSize]) {
  uint4 bits;
  auto* pairs = reinterpret_cast<typename Element<T>::Pair*>(&bits);
#pragma unroll
  for (int i = 0; i < kVectorSize / 2; ++i) {
    pairs[i] = Element<T>::pair(from[2 * i], from[2 * i + 1]);
  }
  *reinterpret_cast<uint4*>(to) = bits;
}
__device__ inline void store_vector(float* to, const float (&from)[kVectorSize]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    reinterpret_cast<float4*>(to)[i] =
        make_float4(from[4 * i], from[4 * i + 1], from[4 * i + 2], from[4 * i + 3]);
  }
}

/// Calls launch.operator()<T>() for the two dtypes that CUDA computes in.
template <class Launch>
void dispatch_dtype(DType dtype, Launch launch) {
  switch (dtype) {
    case DType::kFloat16:
      return launch.template operator()<__half>();
    case DType::kBFloat16:
      return launch.template operator()<__nv_bfloat16>();
    default:
      throw InvalidArgument(concat("CUDA computes in float16 or bfloat16, found ", name_of(dtype)));
  }
}

}  // namespace packhorse::cuda
