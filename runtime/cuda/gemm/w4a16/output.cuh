// Epilogue of products with weights in groups: bias, activation, gate, rotation and residual, for
// two neighbouring columns at a time, by one function for all kernels. Sums pass through shared
// memory, which brings together a gate and what it gates, and the parts of a sum.
#pragma once

#include "cuda/common/activations.cuh"
#include "cuda/common/rotation.cuh"
#include "cuda/common/vector.cuh"
#include "cuda/gemm/w4a16/w4a16.h"

namespace packhorse::cuda {

/// The fields of GemmParams that the epilogue needs.
struct W4a16Output {
  const float* bias;
  const __half* residual;
  int64_t ldr;
  __half* out;
  int64_t ldo;
  int32_t n;
  Activation activation;
  bool gated;
  GemmRotation rotation;
};

inline W4a16Output w4a16_output(const GemmParams& p) {
  W4a16Output output{};
  output.bias = p.bias;
  output.residual = static_cast<const __half*>(p.residual);
  output.ldr = p.ldr;
  output.out = static_cast<__half*>(p.out);
  output.ldo = p.ldo;
  output.n = p.n;
  output.activation = p.activation;
  output.gated = p.gated;
  output.rotation = p.rotation;
  return output;
}

/// Returns the feature of the product at which pair `pair` of a tile begins, counted from the
/// tile's first. With a gate it is the gate's; the feature that it gates lies kGateBlock further.
__device__ inline int w4a16_feature_of(const W4a16Output& output, int pair) {
  const int column = 2 * pair;
  return output.gated ? column / kGateBlock * 2 * kGateBlock + column % kGateBlock : column;
}

/// Returns the bias of features `feature` and `feature` + 1. A zero is added where there is no
/// bias, as in the kernels of float16 layers: that turns -0 into 0.
__device__ inline float2 w4a16_bias(const W4a16Output& output, int feature) {
  if (output.bias == nullptr) return {0, 0};
  return {__ldg(output.bias + feature), __ldg(output.bias + feature + 1)};
}

/// Returns columns `column` and `column` + 1 of the result, before a residual is added. `sum`:
/// their sums with the bias added. `other`: with a gate, the sums of the columns that they gate,
/// with the bias added.
template <class Function>
__device__ float2 w4a16_pair(const W4a16Output& output, int row, int column,
                             const Function& function, float2 sum, float2 other) {
  float2 value = {function(sum.x), function(sum.y)};
  if (output.gated) value = {value.x * other.x, value.y * other.y};
  const GemmRotation& rotation = output.rotation;
  if (rotation.positions != nullptr && column < rotation.columns) {
    const int in_head = column % rotation.head_dim;
    if (in_head < rotation.dims) {
      rotate(value.x, value.y,
             cos_sin(rotation.positions[row], __ldg(rotation.frequencies + in_head / 2)));
    }
  }
  return value;
}

/// Returns the column of the result to which feature `feature` of the product, or of its gate,
/// belongs.
__device__ inline int w4a16_column_of(const W4a16Output& output, int feature) {
  return output.gated ? feature / (2 * kGateBlock) * kGateBlock + feature % kGateBlock : feature;
}

/// Finishes the columns that begin at feature `feature` of the product, in row `row`. sums(f) gives
/// the sums of features f and f + 1.
template <class Function, class Sums>
__device__ void finish_groups(const W4a16Output& output, int row, int feature,
                              const Function& function, const Sums& sums) {
  const auto biased = [&](int at) {
    const float2 sum = sums(at);
    const float2 bias = w4a16_bias(output, at);
    return float2{sum.x + bias.x, sum.y + bias.y};
  };
  const int column = w4a16_column_of(output, feature);
  const float2 other = output.gated ? biased(feature + kGateBlock) : float2{};
  float2 value = w4a16_pair(output, row, column, function, biased(feature), other);
  if (output.residual != nullptr) {
    const float2 added = __half22float2(
        *reinterpret_cast<const __half2*>(output.residual + row * output.ldr + column));
    value = {value.x + added.x, value.y + added.y};
  }
  *reinterpret_cast<__half2*>(output.out + row * output.ldo + column) =
      __floats2half2_rn(value.x, value.y);
}

/// Finishes the same eight columns of the result in several rows. Residual and result are accessed
/// by 16 bytes, and the bias is read once.
struct W4a16Vector {
  const W4a16Output& output;
  /// First column: of the product (with a gate, of the gate), a multiple of 8; and of the result.
  int feature;
  int column;
  float2 bias[2][4];

  __device__ W4a16Vector(const W4a16Output& output, int feature)
      : output(output), feature(feature), column(w4a16_column_of(output, feature)) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = feature + 2 * i;
      bias[0][i] = exists() ? w4a16_bias(output, at) : float2{};
      bias[1][i] = exists() && output.gated ? w4a16_bias(output, at + kGateBlock) : float2{};
    }
  }

  __device__ bool exists() const { return feature < output.n; }

  /// Returns the residual of these columns in a row; zeros where there is none.
  __device__ uint4 residual(int row) const {
    if (output.residual == nullptr) return {};
    return *reinterpret_cast<const uint4*>(output.residual + row * output.ldr + column);
  }

  /// Finishes a row. `sums` are those of the features from `feature` on, in shared memory, and
  /// `added` is what residual() gave.
  template <class Function>
  __device__ void finish(int row, const float* sums, const uint4& added,
                         const Function& function) const {
    const auto biased = [&](int part, int i) {
      const float2 sum = *reinterpret_cast<const float2*>(sums + part * kGateBlock + 2 * i);
      return float2{sum.x + bias[part][i].x, sum.y + bias[part][i].y};
    };
    const uint32_t words[4] = {added.x, added.y, added.z, added.w};
    uint32_t result[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 other = output.gated ? biased(1, i) : float2{};
      float2 value = w4a16_pair(output, row, column + 2 * i, function, biased(0, i), other);
      if (output.residual != nullptr) {
        const float2 pair = __half22float2(reinterpret_cast<const __half2&>(words[i]));
        value = {value.x + pair.x, value.y + pair.y};
      }
      const __half2 rounded = __floats2half2_rn(value.x, value.y);
      result[i] = reinterpret_cast<const uint32_t&>(rounded);
    }
    *reinterpret_cast<uint4*>(output.out + row * output.ldo + column) =
        uint4{result[0], result[1], result[2], result[3]};
  }
};

}  // namespace packhorse::cuda
