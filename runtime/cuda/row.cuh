// Rows of 16-bit elements held in registers as float32, eight elements (16 bytes) per access.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "core/format.h"
#include "cuda/reduce.cuh"
#include "ops/args.h"
#include "packhorse/error.h"

namespace packhorse::cuda {

inline constexpr int kVectorSize = 8;

__device__ inline float2 to_float2(__half2 pair) { return __half22float2(pair); }
__device__ inline float2 to_float2(__nv_bfloat162 pair) { return __bfloat1622float2(pair); }
__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(__half value) { return __half2float(value); }
__device__ inline float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

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

/// Adds the eight elements at `from` (16-byte aligned) to `to`.
template <class T>
__device__ void add_vector(float (&to)[kVectorSize], const T* from) {
  const uint4 bits = *reinterpret_cast<const uint4*>(from);
  const auto* pairs = reinterpret_cast<const typename Element<T>::Pair*>(&bits);
#pragma unroll
  for (int i = 0; i < kVectorSize / 2; ++i) {
    const float2 pair = to_float2(pairs[i]);
    to[2 * i] += pair.x;
    to[2 * i + 1] += pair.y;
  }
}
__device__ inline void add_vector(float (&to)[kVectorSize], const float* from) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float4 quad = reinterpret_cast<const float4*>(from)[i];
    to[4 * i] += quad.x;
    to[4 * i + 1] += quad.y;
    to[4 * i + 2] += quad.z;
    to[4 * i + 3] += quad.w;
  }
}

template <class T>
__device__ void load_vector(float (&to)[kVectorSize], const T* from) {
#pragma unroll
  for (int i = 0; i < kVectorSize; ++i) to[i] = 0;
  add_vector(to, from);
}

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

/// (value - mean) * factor * gamma + beta for the eight columns from `column`.
__device__ inline void scale_vector(float (&value)[kVectorSize], const NormWeight& weight,
                                    float mean, float factor, int column) {
  float gamma[kVectorSize];
  load_vector(gamma, weight.gamma + column);
#pragma unroll
  for (int i = 0; i < kVectorSize; ++i) value[i] = (value[i] - mean) * factor * gamma[i];
  if (weight.beta != nullptr) add_vector(value, weight.beta + column);
}

/// One row, spread over the kThreads threads of a group: thread i holds vectors i, i + kThreads,
/// ... Vectors past the row's end are neither read nor written.
template <int kThreads, int kVectors>
struct Row {
  float values[kVectors][kVectorSize] = {};
  int columns;

  __device__ explicit Row(int columns) : columns(columns) {}

  /// Calls visit(values of one vector, its first column).
  template <class Visit>
  __device__ void for_each(Visit visit) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int column = (static_cast<int>(threadIdx.x) % kThreads + v * kThreads) * kVectorSize;
      if (column < columns) visit(values[v], column);
    }
  }

  template <class T>
  __device__ void add(const T* from) {
    for_each([&](float (&value)[kVectorSize], int column) { add_vector(value, from + column); });
  }

  /// LayerNorm (variance from the centred values) or RMSNorm; nothing where there is no gamma.
  /// `scratch`: 2 x 32 floats.
  __device__ void normalize(const NormWeight& weight, float* scratch) {
    if (weight.gamma == nullptr) return;
    float mean = 0;
    if (weight.kind == NormKind::kLayer) {
      float sum = 0;
      for_each([&](float (&value)[kVectorSize], int) {
#pragma unroll
        for (float x : value) sum += x;
      });
      mean = group_sum<kThreads>(sum, scratch) / static_cast<float>(columns);
    }
    float squares = 0;
    for_each([&](float (&value)[kVectorSize], int) {
#pragma unroll
      for (float x : value) squares += (x - mean) * (x - mean);
    });
    squares = group_sum<kThreads>(squares, scratch + 32);
    const float factor = rsqrtf(squares / static_cast<float>(columns) + weight.eps);
    for_each([&](float (&value)[kVectorSize], int column) {
      scale_vector(value, weight, mean, factor, column);
    });
  }

  template <class T>
  __device__ void store(T* to) {
    for_each([&](float (&value)[kVectorSize], int column) { store_vector(to + column, value); });
  }
};

/// Threads of a block that folds rows too wide for its registers.
inline constexpr int kFoldThreads = 512;

/// Thread-block folding for rows of any width: the block goes over the row three times, calling
/// load(values, first column) each time (out of cache but for the first), and writes it once.
template <class T, class Load>
__device__ void fold_row(int columns, Load load, const NormWeight& weight, T* out, float* scratch) {
  const auto fold = [&](auto visit) {
    for (int column = threadIdx.x * kVectorSize; column < columns;
         column += kFoldThreads * kVectorSize) {
      float value[kVectorSize] = {};
      load(value, column);
      visit(value, column);
    }
  };
  float mean = 0;
  float factor = 0;
  if (weight.gamma != nullptr) {
    if (weight.kind == NormKind::kLayer) {
      float sum = 0;
      fold([&](const float (&value)[kVectorSize], int) {
        for (float x : value) sum += x;
      });
      mean = group_sum<kFoldThreads>(sum, scratch) / static_cast<float>(columns);
    }
    float squares = 0;
    fold([&](const float (&value)[kVectorSize], int) {
      for (float x : value) squares += (x - mean) * (x - mean);
    });
    squares = group_sum<kFoldThreads>(squares, scratch + 32);
    factor = rsqrtf(squares / static_cast<float>(columns) + weight.eps);
  }
  fold([&](float (&value)[kVectorSize], int column) {
    if (weight.gamma != nullptr) scale_vector(value, weight, mean, factor, column);
    store_vector(out + column, value);
  });
}

/// How rows of `columns` elements are spread, by the width alone: calls launch.operator()<threads
/// of a row, vectors of a thread>(). A warp takes a row of up to 1024 elements (no barrier at all),
/// a block of 128 or 512 threads a longer one; <kFoldThreads, 0> asks for folding (over 16384).
template <class Launch>
void dispatch_row(int64_t columns, Launch launch) {
  const auto spread = [&]<int kThreads, int kFirst>(int64_t vectors) {
    switch ((vectors + kThreads - 1) / kThreads) {
      case 1:
        if constexpr (kFirst == 1) return launch.template operator()<kThreads, 1>();
        [[fallthrough]];
      case 2:
        return launch.template operator()<kThreads, 2>();
      case 3:
        return launch.template operator()<kThreads, 3>();
      default:
        return launch.template operator()<kThreads, 4>();
    }
  };
  const int64_t vectors = columns / kVectorSize;
  if (vectors <= 128) return spread.template operator()<32, 1>(vectors);
  if (vectors <= 512) return spread.template operator()<128, 2>(vectors);
  if (vectors <= 2048) return spread.template operator()<512, 2>(vectors);
  launch.template operator()<kFoldThreads, 0>();
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
