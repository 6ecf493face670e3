// Limits of e4m3 (DType::kFloat8), without functions, so that kernels may include them.
#pragma once

namespace packhorse {

/// The largest number.
inline constexpr float kFloat8Most = 448.0f;
/// The least magnitude that a scale is made for, so that factors stay finite: where all numbers are
/// smaller, they become zeros.
inline constexpr float kFloat8Least = 0x1p-64f;

}  // namespace packhorse
