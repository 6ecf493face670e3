// Arguments that operators have in float8 alone: scales and where their arrays lie.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "core/float8.h"
#include "packhorse/_native/ops_call.h"

namespace packhorse {

/// The lengths of the rows of a matrix in host memory.
inline std::vector<float> row_lengths(const char* name, const Floats& array) {
  const auto* host = std::get_if<FloatArray>(&array);
  if (host == nullptr) {
    throw InvalidArgument(concat(name, " is on a device, expected host memory for dtype float8"));
  }
  const auto [rows, columns] = shape_of_matrix(name, array);
  std::vector<float> lengths(static_cast<size_t>(rows));
  for (int64_t row = 0; row < rows; ++row) {
    float square = 0;
    for (int64_t i = 0; i < columns; ++i) {
      const float value = host->data()[row * columns + i];
      square += value * value;
    }
    lengths[static_cast<size_t>(row)] = std::sqrt(square);
  }
  return lengths;
}

/// FeedForwardArgs::inner_scale for these inputs: no product is longer than its factors (Cauchy and
/// Schwarz). A session knows bounds of its inputs from norms (model/loading/float8_layers.h).
inline float inner_scale(const Floats& x, const Linear& up, bool gated) {
  const auto& [weight, bias] = up;
  const std::vector<float> rows = row_lengths("x", x);
  const float longest = rows.empty() ? 0.0f : *std::max_element(rows.begin(), rows.end());
  float most = 1;
  const std::vector<float> lengths = row_lengths("up", weight);
  for (size_t i = 0; i < lengths.size(); ++i) {
    const auto* added = bias ? std::get_if<FloatArray>(&*bias) : nullptr;
    const float shift = added == nullptr ? 0.0f : std::abs(added->data()[i]);
    most = std::max(most, longest * lengths[i] + shift);
  }
  constexpr float kRounding = 1.15f;  // factors may grow by 2^-4 when they are quantised
  const float bound = kRounding * most;
  return (gated ? bound * bound : bound) / kFloat8Most;
}

}  // namespace packhorse
