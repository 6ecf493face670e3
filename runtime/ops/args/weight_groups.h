// The form of weights that are quantised in groups of input features.
#pragma once

#include <cstdint>

#include "core/math.h"

namespace packhorse {

/// Each value of a weight stands for scale * (q - 2^(bits - 1)), or with `minima` for
/// scale * q + minimum, where q is an integer from 0 to 2^bits - 1. A scale, and a minimum, belongs
/// to `size` neighbouring input features of one output feature; the last group of a row may have
/// fewer. Scales and minima are float16.
///
/// With `ordered` the input features are in an order of the weight's own, in which those of a group
/// are neighbours: the layer takes the columns of its input in that order.
///
/// `wide_inputs`: a CPU rounds what the layer takes to 16 bits instead of 8. It has its weights in
/// 10 bits then, made of floats, without minima, and their scales are bfloat16.
struct WeightGroups {
  int32_t bits = 0;  // 4, 8 or 10; 0: the weights are not quantised in groups
  int32_t size = 0;  // a power of two from 16 on; with 4 bits, from 32 on
  bool minima = false;
  bool ordered = false;
  bool wide_inputs = false;  // only, and always, with 10 bits and groups of 64

  explicit operator bool() const { return bits != 0; }
  bool operator==(const WeightGroups&) const = default;

  /// The number of groups in a row.
  int64_t count(int64_t in_features) const { return ceil_div(in_features, size); }
  /// q of the value 0, where there are no minima.
  int32_t zero() const { return 1 << (bits - 1); }
};

/// The weight of a layer in 4 or 8 bits, in host memory.
struct GroupedWeight {
  const uint8_t* values = nullptr;   // q, [out_features, in_features]
  const uint16_t* scales = nullptr;  // bits of float16, [out_features, groups]
  const uint16_t* minima = nullptr;  // in the same form, or null
};

}  // namespace packhorse
