// How products with weights in groups finish: bias, activation, gate, rotation and residual, of two
// neighbouring columns at a time, by one function for all kernels. Sums come to it by way of shared
// memory, where a gate and what it gates meet, and the parts of a sum.
#pragma once

#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/gemm_groups.h"
#include "cuda/rows/rotation.cuh"
#include "cuda/rows/row.cuh"

namespace packhorse::cuda {

/// Of GemmParams, what finishing a sum needs.
struct GroupsOutput {
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

inline GroupsOutput groups_output(const GemmParams& p) {
  GroupsOutput output{};
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

/// The feature of the product at which pair `pair` of a tile begins, counted from the tile's first:
/// with a gate, of the gate; what it gates lies kGateBlock features further.
__device__ inline int groups_feature_of(const GroupsOutput& output, int pair) {
  const int column = 2 * pair;
  return output.gated ? column / kGateBlock * 2 * kGateBlock + column % kGateBlock : column;
}

/// Finishes the columns that begin at feature `feature` of the product, in row `row`. sums(f) gives
/// the sums of features f and f + 1.
template <class Function, class Sums>
__device__ void finish_groups(const GroupsOutput& output, int row, int feature,
                              const Function& function, const Sums& sums) {
  const auto biased = [&](int at) {
    const float2 sum = sums(at);
    // A bias of zero is added, too, as in the kernels of float16 layers: it makes 0 of -0.
    const bool has_bias = output.bias != nullptr;
    return float2{sum.x + (has_bias ? __ldg(output.bias + at) : 0.0f),
                  sum.y + (has_bias ? __ldg(output.bias + at + 1) : 0.0f)};
  };
  float2 value = biased(feature);
  value = {function(value.x), function(value.y)};
  int column = feature;
  if (output.gated) {
    const float2 other = biased(feature + kGateBlock);
    value = {value.x * other.x, value.y * other.y};
    column = feature / (2 * kGateBlock) * kGateBlock + feature % kGateBlock;
  }
  const GemmRotation& rotation = output.rotation;
  if (rotation.positions != nullptr && column < rotation.columns) {
    const int in_head = column % rotation.head_dim;
    if (in_head < rotation.dims) {
      rotate(value.x, value.y,
             cos_sin(rotation.positions[row], __ldg(rotation.frequencies + in_head / 2)));
    }
  }
  if (output.residual != nullptr) {
    const float2 added = __half22float2(
        *reinterpret_cast<const __half2*>(output.residual + row * output.ldr + column));
    value = {value.x + added.x, value.y + added.y};
  }
  *reinterpret_cast<__half2*>(output.out + row * output.ldo + column) =
      __floats2half2_rn(value.x, value.y);
}

}  // namespace packhorse::cuda
