// Activations of the GEMM epilogues. This file compiles as host code too, so that a test on the CPU
// can check their errors.
//
// A 16-bit GEMM with k = 768 leaves the epilogue few issue slots per output element, and fewer
// still of the special function unit, which takes eight cycles for one instruction of a warp. GELU
// is therefore computed as max(x, 0) - |x| Phi(-|x|), where Phi(-|x|) is a power of 2 whose
// exponent is a polynomial of degree 4 (tools/fit_gelu.py). That takes eight instructions, one of
// them special. Compared with float64 the error is at most 2.2e-5 anywhere, and 2.6e-5 for the tanh
// form. The other smooth activations use a logistic function of base 2, which takes two special
// instructions.
#pragma once

#include <cmath>

#include "ops/activation.h"

#if defined(__CUDACC__)
#define PACKHORSE_HOST_DEVICE __host__ __device__ __forceinline__
#define PACKHORSE_UNROLL _Pragma("unroll")
#else
#define PACKHORSE_HOST_DEVICE inline
#define PACKHORSE_UNROLL
#endif

namespace packhorse::cuda {

/// Returns max(x, 0), and NaN for a NaN.
PACKHORSE_HOST_DEVICE float relu(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
  return y;
#else
  return x < 0.0f ? 0.0f : x;
#endif
}

/// Returns 2^x, or zero where that is less than the smallest normal number.
PACKHORSE_HOST_DEVICE float exp2_or_zero(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return x < -126.0f ? 0.0f : std::exp2(x);
#endif
}

/// Returns 1 / (1 + 2^x), by two instructions of the special function unit and one addition.
PACKHORSE_HOST_DEVICE float logistic2(float x) {
  const float sum = 1.0f + exp2_or_zero(x);
#if defined(__CUDA_ARCH__)
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(sum));
  return y;
#else
  return 1.0f / sum;
#endif
}

/// max(x, 0) - t 2^P(t), where t = min(|x|, 16), since the power is zero from 16 on, and c0 to c4
/// are the coefficients of P, constant first.
struct Gelu {
  float c0, c1, c2, c3, c4;
  PACKHORSE_HOST_DEVICE float operator()(float x) const {
    const float t = fminf(fabsf(x), 16.0f);
    const float p = fmaf(fmaf(fmaf(fmaf(c4, t, c3), t, c2), t, c1), t, c0);
    return fmaf(-t, exp2_or_zero(p), relu(x));
  }
};
/// scale / (1 + 2^(slope x)) + shift, where a scale of 0 stands for x.
struct Squash {
  float slope, scale, shift;
  PACKHORSE_HOST_DEVICE float operator()(float x) const {
    return fmaf(scale == 0.0f ? x : scale, logistic2(slope * x), shift);
  }
};

/// x Phi(x), where Phi is the distribution function of the normal distribution.
PACKHORSE_HOST_DEVICE constexpr Gelu gelu_erf() {
  return {-1.00144601f, -1.14145982f, -0.478347898f, -0.0374674089f, 0.0025f};
}
/// x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2
PACKHORSE_HOST_DEVICE constexpr Gelu gelu_tanh() {
  return {-1.00192499f, -1.13571525f, -0.495895863f, -0.016985748f, -0.0043f};
}
/// x / (1 + exp(-x))
PACKHORSE_HOST_DEVICE constexpr Squash silu() { return {-1.44269504f, 0.0f, 0.0f}; }
/// 1 / (1 + exp(-x))
PACKHORSE_HOST_DEVICE constexpr Squash sigmoid() { return {-1.44269504f, 1.0f, 0.0f}; }
/// tanh(x) = 2 / (1 + exp(-2 x)) - 1, and near 0, where that difference would have no digits left,
/// the first three terms of its series: the relative error is at most 3e-6 anywhere.
struct Tanh {
  PACKHORSE_HOST_DEVICE float operator()(float x) const {
    const float square = x * x;
    const float series = fmaf(fmaf(2.0f / 15.0f, square, -1.0f / 3.0f), square * x, x);
    return fabsf(x) < 0.125f ? series : fmaf(2.0f, logistic2(-2.88539008f * x), -1.0f);
  }
};

/// Calls `use` with a function of one float. `use` is instantiated once for each of the five forms,
/// so that the branch lies outside of its loops.
template <class Use>
PACKHORSE_HOST_DEVICE void with_activation(Activation activation, Use&& use) {
  switch (activation) {
    case Activation::kNone:
      return use([](float x) { return x; });
    case Activation::kRelu:
      return use([](float x) { return relu(x); });
    case Activation::kGelu:
    case Activation::kGeluTanh:
      return use(activation == Activation::kGelu ? gelu_erf() : gelu_tanh());
    case Activation::kSilu:
    case Activation::kSigmoid:
      return use(activation == Activation::kSilu ? silu() : sigmoid());
    case Activation::kTanh:
      return use(Tanh{});
  }
}

/// Applies one activation to the first `count` values.
template <int count, class Values>
PACKHORSE_HOST_DEVICE void activate(Values& values, Activation activation) {
  with_activation(activation, [&](auto function) {
    PACKHORSE_UNROLL
    for (int i = 0; i < count; ++i) values[i] = function(values[i]);
  });
}

}  // namespace packhorse::cuda
