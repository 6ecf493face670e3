// Activations of the GEMM epilogues. Compiles as host code too, so that a CPU test can check
// errors.
//
// A 16-bit GEMM with k = 768 leaves about 60 issue slots per output element to the epilogue, so the
// GELUs are 13 instructions of plain FMA arithmetic: gelu(x) = max(x, 0) - h(|x|) with h(t) =
// t s^2 P(s), s = max(c - t, 0). Coefficients: tools/fit_gelu.py. Against float64 the erf form errs
// by at most 2.6e-5 and the tanh form by 1.9e-5 anywhere; gelu(x) is exactly x from c on, exactly 0
// below -c and at 0.
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

PACKHORSE_HOST_DEVICE float gelu_from_tail(float x, float c, float p0, float p1, float p2, float p3,
                                           float p4, float p5, float p6, float p7) {
  const float t = fminf(fabsf(x), c);
  const float s = c - t;
  float p = fmaf(p7, s, p6);
  p = fmaf(p, s, p5);
  p = fmaf(p, s, p4);
  p = fmaf(p, s, p3);
  p = fmaf(p, s, p2);
  p = fmaf(p, s, p1);
  p = fmaf(p, s, p0);
  return fmaf(-t * (s * s), p, relu(x));
}

/// x Phi(x), Phi the normal distribution function.
PACKHORSE_HOST_DEVICE float gelu_erf(float x) {
  return gelu_from_tail(x, 4.45f, 2.95042537e-05f, 1.15696702e-03f, -3.3025241e-03f,
                        4.35651513e-03f, -2.82876892e-03f, 1.02635543e-03f, -1.74581728e-04f,
                        1.08661079e-05f);
}

/// x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2
PACKHORSE_HOST_DEVICE float gelu_tanh(float x) {
  return gelu_from_tail(x, 4.35f, -1.77494258e-05f, 1.12416269e-03f, -2.95034237e-03f,
                        3.89327505e-03f, -2.52655428e-03f, 9.58591932e-04f, -1.70838350e-04f,
                        1.10603105e-05f);
}

/// 1 / (1 + exp(-x)); the fast division returns 0 where exp(-x) overflows 2^126, as it should.
PACKHORSE_HOST_DEVICE float sigmoid(float x) {
#if defined(__CUDA_ARCH__)
  return __fdividef(1.0f, 1.0f + __expf(-x));
#else
  return 1.0f / (1.0f + std::exp(-x));
#endif
}

PACKHORSE_HOST_DEVICE float tanh_from_sigmoid(float x) {
  return fmaf(2.0f, sigmoid(2.0f * x), -1.0f);
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
