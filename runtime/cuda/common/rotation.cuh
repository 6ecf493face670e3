// Angles of rotary embeddings (RoPE), computed where they are used, so that a kernel reads one
// position per token instead of a table of sines and cosines.
#pragma once

namespace packhorse::cuda {

/// Returns {cos, sin} of position * frequency. The product is rounded to float32, as in training.
/// Whole turns (up to 2^22 of them) are then subtracted, with 2 pi as the sum of two float32
/// numbers. The rest is small enough that the approximations of the special function unit err by
/// less than 1e-6.
__device__ inline float2 cos_sin(float position, float frequency) {
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
  const float angle = __fmul_rn(position, frequency);
  const float turns = __fadd_rn(__fmaf_rn(angle, 0.159154943f, kRounder), -kRounder);
  float rest = __fmaf_rn(turns, -6.28318548f, angle);
  rest = __fmaf_rn(turns, 1.74845553e-7f, rest);
  float2 result;
  asm("cos.approx.ftz.f32 %0, %1;" : "=f"(result.x) : "f"(rest));
  asm("sin.approx.ftz.f32 %0, %1;" : "=f"(result.y) : "f"(rest));
  return result;
}

/// Rotates the pair (a, b) by the angle whose {cos, sin} is `angle`.
__device__ inline void rotate(float& a, float& b, float2 angle) {
  const float turned = __fmaf_rn(a, angle.x, -__fmul_rn(b, angle.y));
  b = __fmaf_rn(b, angle.x, __fmul_rn(a, angle.y));
  a = turned;
}

}  // namespace packhorse::cuda
