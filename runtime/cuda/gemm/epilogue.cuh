// Activations of the GEMM epilogues. Compiles as host code too, so that a CPU test can check
// errors.
//
// A 16-bit GEMM with k = 768 leaves few issue slots per output element to the epilogue, so every
// smooth activation is x or 1 times a logistic function of base 2, and GELU is x / (1 + 2^(x
// Q(x^2))) with a quadratic Q (tools/fit_gelu.py): nine instructions. Against float64 it errs by at
// most 2.6e-5 anywhere; the tanh form needs no fit and errs by rounding only.
#pragma once

#include <cmath>

#include "ops/args.h"

#if defined(__CUDACC__)
#define PACKHORSE_HOST_DEVICE __host__ __device__ __forceinline__
#define PACKHORSE_UNROLL _Pragma("unroll")
#else
#define PACKHORSE_HOST_DEVICE inline
#define PACKHORSE_UNROLL
#endif

namespace packhorse::cuda {

/// max(x, 0) that keeps a NaN.
PACKHORSE_HOST_DEVICE float relu(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
  return y;
#else
  return x < 0.0f ? 0.0f : x;
#endif
}

/// 1 / (1 + 2^x): two instructions of the special function unit, one addition.
PACKHORSE_HOST_DEVICE float logistic2(float x) {
#if defined(__CUDA_ARCH__)
  float power, y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(1.0f + power));
  return y;
#else
  return 1.0f / (1.0f + std::exp2(x));
#endif
}

/// x / (1 + 2^(x Q(x^2))), Q of ascending coefficients, x^2 up to 36.
struct Gate {
  float c0, c1, c2;
  PACKHORSE_HOST_DEVICE float operator()(float x) const {
    const float u = fminf(x * x, 36.0f);
    return x * logistic2(x * fmaf(fmaf(c2, u, c1), u, c0));
  }
};
/// scale / (1 + 2^(slope x)) + shift
struct Squash {
  float slope, scale, shift;
  PACKHORSE_HOST_DEVICE float operator()(float x) const {
    return fmaf(scale, logistic2(slope * x), shift);
  }
};

/// x Phi(x), Phi the normal distribution function.
PACKHORSE_HOST_DEVICE constexpr Gate gelu_erf() {
  return {-2.30112123f, -0.106775731f, 0.00101426465f};
}
/// x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2: Q is exact.
PACKHORSE_HOST_DEVICE constexpr Gate gelu_tanh() { return {-2.30220819f, -0.102943242f, 0.0f}; }
/// x / (1 + exp(-x))
PACKHORSE_HOST_DEVICE constexpr Gate silu() { return {-1.44269504f, 0.0f, 0.0f}; }
PACKHORSE_HOST_DEVICE constexpr Squash sigmoid() { return {-1.44269504f, 1.0f, 0.0f}; }
PACKHORSE_HOST_DEVICE constexpr Squash tanh_as_sigmoid() { return {-2.88539008f, 2.0f, -1.0f}; }

/// Calls `use` with a function of one float. It is instantiated once for each of the four forms,
/// so that the branch stands outside of its loops.
template <class Use>
PACKHORSE_HOST_DEVICE void with_activation(Activation activation, Use&& use) {
  switch (activation) {
    case Activation::kNone:
      return use([](float x) { return x; });
    case Activation::kRelu:
      return use([](float x) { return relu(x); });
    case Activation::kGelu:
    case Activation::kGeluTanh:
    case Activation::kSilu:
      return use(activation == Activation::kGelu   ? gelu_erf()
                 : activation == Activation::kSilu ? silu()
                                                   : gelu_tanh());
    case Activation::kTanh:
    case Activation::kSigmoid:
      return use(activation == Activation::kTanh ? tanh_as_sigmoid() : sigmoid());
  }
}

/// Applies one activation to `count` values.
template <int count, class Values>
PACKHORSE_HOST_DEVICE void activate(Values& values, Activation activation) {
  with_activation(activation, [&](auto function) {
    PACKHORSE_UNROLL
    for (int i = 0; i < count; ++i) values[i] = function(values[i]);
  });
}

}  // namespace packhorse::cuda
