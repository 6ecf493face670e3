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

/// x Phi(x), Phi the normal distribution function, as x / (1 + 2^(x Q(x^2))).
PACKHORSE_HOST_DEVICE float gelu_erf(float x) {
  const float u = fminf(x * x, 36.0f);
  const float q = fmaf(fmaf(0.00101426465f, u, -0.106775731f), u, -2.30112123f);
  return x * logistic2(x * q);
}

/// x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2, the same form with Q exact.
PACKHORSE_HOST_DEVICE float gelu_tanh(float x) {
  const float q = fmaf(-0.102943242f, x * x, -2.30220819f);
  return x * logistic2(x * q);
}

/// 1 / (1 + exp(-x))
PACKHORSE_HOST_DEVICE float sigmoid(float x) { return logistic2(-1.44269504f * x); }

PACKHORSE_HOST_DEVICE float tanh_from_sigmoid(float x) {
  return fmaf(2.0f, logistic2(-2.88539008f * x), -1.0f);
}

/// Applies one activation to `count` values. The switch stands outside the loop: it costs one
/// uniform branch per fragment, and saves a kernel per activation.
template <int count, class Values>
PACKHORSE_HOST_DEVICE void activate(Values& values, Activation activation) {
  auto each = [&](auto function) {
    PACKHORSE_UNROLL
    for (int i = 0; i < count; ++i) values[i] = function(values[i]);
  };
  switch (activation) {
    case Activation::kNone:
      return;
    case Activation::kGelu:
      return each([](float x) { return gelu_erf(x); });
    case Activation::kGeluTanh:
      return each([](float x) { return gelu_tanh(x); });
    case Activation::kRelu:
      return each([](float x) { return relu(x); });
    case Activation::kSilu:
      return each([](float x) { return x * sigmoid(x); });
    case Activation::kTanh:
      return each([](float x) { return tanh_from_sigmoid(x); });
    case Activation::kSigmoid:
      return each([](float x) { return sigmoid(x); });
  }
}

}  // namespace packhorse::cuda
