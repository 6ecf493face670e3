// What operators need to know of tensors in e4m3 (DType::kFloat8), whose elements stand for numbers
// times a scale.
#pragma once

#include "packhorse/types.h"

namespace packhorse {

/// The scales of a tensor that is read: row r is its elements times rows[r], or, where `rows` is
/// null, times `tensor`.
struct Float8Scales {
  const float* rows = nullptr;  // [rows], in the device's memory
  float tensor = 0;
};

/// Rows that are written in e4m3, each with a scale of its own: its largest magnitude /
/// kFloat8Most.
struct Float8Rows {
  TensorView values;        // [rows, columns] kFloat8, or empty: none are asked for
  float* scales = nullptr;  // [rows]
  explicit operator bool() const { return static_cast<bool>(values); }
};

}  // namespace packhorse
