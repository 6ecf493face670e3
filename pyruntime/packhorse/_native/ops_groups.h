// The operator of weights that are quantised in groups, as Python calls it.
#pragma once

#include <algorithm>
#include <optional>
#include <tuple>
#include <vector>

#include "core/float_convert.h"
#include "packhorse/_native/ops_call.h"

namespace packhorse {

// A weight in groups whose integers, scales and minima come as float32, from the host. The caller
// has checked that `input_order` names every input feature once.
inline LinearWeight put_groups(Call& call, const Floats& values, const Floats& scales,
                               const std::optional<Floats>& minima,
                               const std::optional<Floats>& bias,
                               const std::optional<IntArray>& input_order,
                               const WeightGroups& groups) {
  LinearWeight result;
  std::tie(result.out_features, result.in_features) = shape_of_matrix("values", values);
  if (result.out_features == 0 || result.in_features == 0) {
    throw InvalidArgument("values have no rows or no columns");
  }
  const std::vector<int64_t> expected = {result.out_features, groups.count(result.in_features)};
  const auto host = [&](const char* name, const Floats& array) -> const FloatArray& {
    if (const auto* found = std::get_if<FloatArray>(&array)) return *found;
    throw InvalidArgument(concat(name, " is on a device, expected host memory"));
  };
  const auto halves = [&](const char* name, const Floats& array) {
    if (shape_of(array) != expected) {
      throw InvalidArgument(
          concat(name, ": expected the shape [", expected[0], ", ", expected[1], "]"));
    }
    std::vector<uint16_t> bits(static_cast<size_t>(expected[0] * expected[1]));
    const float* from = host(name, array).data();
    std::transform(from, from + bits.size(), bits.begin(), float32_to_float16);
    return bits;
  };
  const float* integers = host("values", values).data();
  std::vector<uint8_t> bytes(static_cast<size_t>(result.out_features * result.in_features));
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (!(integers[i] >= 0 && integers[i] < static_cast<float>(1 << groups.bits))) {
      throw InvalidArgument(concat("values has ", integers[i], ", expected integers from 0 to ",
                                   (1 << groups.bits) - 1));
    }
    bytes[i] = static_cast<uint8_t>(integers[i]);
  }
  const std::vector<uint16_t> of_scales = halves("scales", scales);
  std::vector<uint16_t> of_minima;
  if (minima) of_minima = halves("minima", *minima);
  if (input_order) result.input_order = call.put_ints(*input_order);
  call.pack_groups(result, groups,
                   {bytes.data(), of_scales.data(), minima ? of_minima.data() : nullptr});
  result.bias = call.put_vector("bias", bias, result.out_features);
  return result;
}

/// With `gated`, blocks of kGateBlock rows of the weight alternate between a gate and what it
/// gates.
inline py::object gemm_groupwise(Call& call, Ops& ops, const Floats& x, const Floats& values,
                                 const Floats& scales, const std::optional<Floats>& minima,
                                 const std::optional<Floats>& bias, int bits, int group,
                                 Activation activation, bool gated,
                                 const std::optional<Floats>& residual,
                                 const std::optional<IntArray>& input_order) {
  const LinearWeight weight =
      put_groups(call, values, scales, minima, bias, input_order,
                 {bits, group, minima.has_value(), input_order.has_value()});
  if (gated) {
    FeedForwardUpArgs args;
    args.x = call.put("x", x);
    args.up = weight;
    args.activation = activation;
    args.gated = true;
    args.out = call.result(args.x.rows(), weight.out_features / 2);
    args.sums = call.result(args.x.rows(), weight.out_features);
    LinearArgs scratch;
    scratch.x = args.x;
    scratch.weight = weight;
    scratch.out = args.sums;
    args.workspace = call.allocate(ops.linear_workspace(scratch));
    ops.feed_forward_up(args);
    return call.get(args.out);
  }
  LinearArgs args;
  args.x = call.put("x", x);
  args.weight = weight;
  args.activation = activation;
  args.residual = call.put("residual", residual);
  args.out = call.result(args.x.rows(), weight.out_features);
  args.workspace = call.allocate(ops.linear_workspace(args));
  ops.linear(args);
  return call.get(args.out);
}

}  // namespace packhorse
