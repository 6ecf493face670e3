// Arguments that several families of operators have in common: the batch, and the weights of dense
// layers and of norms.
//
// Each header beside this one has the arguments of one family, a struct for each operator that a
// model asks of a backend. Ops checks their shapes and dtypes once, for every backend. In the
// shapes, T is the number of tokens in the batch, B the number of sequences, E the hidden size, H
// the number of heads and d the size of a head.
#pragma once

#include <cstdint>

#include "ops/activation.h"
#include "ops/args/weight_groups.h"
#include "packhorse/types.h"

namespace packhorse {

/// One packed batch as the operators see it. The numbers in host memory bound the size of a launch.
/// If `counts` is not null, it points to the exact {T, B} in device memory, so that one captured
/// graph serves every smaller batch. On the CPU the numbers in host memory are exact and `counts`
/// is null.
struct BatchView {
  int64_t num_tokens = 0;
  int64_t num_sequences = 0;
  int64_t max_seqlen = 0;
  const int32_t* cu_seqlens = nullptr;  // [num_sequences + 1], in the device's memory
  const int32_t* counts = nullptr;      // {T, B}, in the device's memory, or null
  /// No sequence that has tokens is shorter; 0 where that is not known.
  int64_t min_seqlen = 0;
};

/// The weights of a dense layer in the backend's own layout, as a LinearPacker made them.
struct LinearWeight {
  int64_t in_features = 0;
  int64_t out_features = 0;
  /// LinearFormat::weight. The input has LinearFormat::compute, or is kFloat8 as the weight is.
  DType dtype = DType::kFloat32;
  const void* data = nullptr;
  const float* bias = nullptr;  // [out_features] or null
  WeightGroups groups = {};     // LinearFormat::groups
  /// Where WeightGroups::ordered: column j of the weight is for column input_order[j] of the input,
  /// [in_features] in the device's memory, each from 0 to in_features - 1. Operators gather the
  /// columns of their input; other layers see the input as it is.
  const int32_t* input_order = nullptr;
  bool skinny = false;  // LinearFormat::skinny
};

/// Returns whether a weight has 16 bits and its input, of dtype `x`, is float32: it is converted to
/// float32 when it is read.
constexpr bool is_widened(DType weight, DType x) {
  return x == DType::kFloat32 && (weight == DType::kBFloat16 || weight == DType::kFloat16);
}

enum class NormKind : uint8_t { kLayer, kRms };

/// The parameters of a normalisation: gamma [E], and beta [E] or null. Statistics are computed in
/// float32. An object without gamma means that there is no normalisation.
struct NormWeight {
  NormKind kind = NormKind::kLayer;
  const float* gamma = nullptr;
  const float* beta = nullptr;
  float eps = 1e-12f;
  /// Columns at the end of a row that only fill it up: the statistics leave them out. They are
  /// zeros in what is normed, in gamma and in beta, and so in the result.
  int32_t padding = 0;
  explicit operator bool() const { return gamma != nullptr; }
};

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
