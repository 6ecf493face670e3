// Arguments of mixtures of experts (MoE), and of the residuals of ZAYA's layers.
#pragma once

#include <cstdint>
#include <span>

#include "ops/args/common.h"

namespace packhorse {

/// The gated feed-forward block of one expert, as FeedForwardArgs has it.
struct ExpertWeights {
  LinearWeight up;
  LinearWeight down;
};

/// out[t] = p * down(activation(gate(x)) * up(x)) of one expert e for each row, a mixture of which
/// a router has made logits: with p = softmax(logits[t]), e is the class with the largest p[e] +
/// balance[e], the lowest of equal ones, and p is p[e]. Classes from the number of experts on stand
/// for no expert: out[t] is zeros. A row whose logits hold a NaN takes a NaN as p.
///
/// Rows are grouped by expert, so that the weights of an expert are read once. A row's bits do not
/// depend on the rows beside it.
struct MoeArgs {
  TensorView x;                            // [rows, E], contiguous
  TensorView logits;                       // [rows, classes]
  int32_t num_classes = 0;                 // the columns of logits beyond them are padding
  const float* balance = nullptr;          // [num_classes]
  std::span<const ExpertWeights> experts;  // at most num_classes, all of one shape
  Activation activation = Activation::kSilu;
  TensorView out;  // [rows, E]; may be x
  const int32_t* row_count = nullptr;
  void* workspace = nullptr;  // Ops::moe_workspace bytes
};

/// out = (x + x_shift) * x_scale + (residual + residual_shift) * residual_scale. The vectors are
/// [columns] or null, and so may `residual` be empty.
struct AddScaledArgs {
  TensorView x;
  const float* x_shift = nullptr;
  const float* x_scale = nullptr;
  TensorView residual;
  const float* residual_shift = nullptr;
  const float* residual_scale = nullptr;
  TensorView out;  // dtype and shape of x; may be x or residual
  const int32_t* row_count = nullptr;
};

}  // namespace packhorse
