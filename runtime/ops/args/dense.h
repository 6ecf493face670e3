// Arguments of dense layers.
#pragma once

#include <cstdint>

#include "ops/args/common.h"

namespace packhorse {

/// out = norm(residual + activation(x W^T + bias)); bias, activation, residual and norm are each
/// optional. `residual` may be the same memory as `out`.
struct LinearArgs {
  TensorView x;  // [rows, in_features]
  LinearWeight weight;
  Activation activation = Activation::kNone;
  TensorView residual;                 // [rows, out_features] or empty
  NormWeight norm;                     // or none
  TensorView out;                      // [rows, out_features]
  const int32_t* row_count = nullptr;  // [1] exact number of rows, in device memory, or null
  void* workspace = nullptr;           // Ops::linear_workspace bytes
  Float8Scales x_scales = {};          // if x is kFloat8; `out` then has LinearFormat::compute
  Float8Rows quantized = {};           // what the norm gives, beside `out`; or empty
};

/// out = norm(residual + down(activation(up(x)))), or with `gated` out = norm(residual +
/// down(activation(gate(x)) * up(x))). This is one operator so that a backend may keep the [T,
/// intermediate] tensor on chip.
struct FeedForwardArgs {
  TensorView x;  // [rows, E]
  /// [intermediate, E]; with `gated` [2 intermediate, E], in which kGateBlock rows of the gate
  /// alternate with kGateBlock rows of up, and `intermediate` is a multiple of kGateBlock.
  LinearWeight up;
  LinearWeight down;  // [E, intermediate]
  Activation activation = Activation::kGelu;
  bool gated = false;
  TensorView residual;  // [rows, E] or empty
  NormWeight norm;      // or none
  TensorView out;       // [rows, E]; may be x and residual
  const int32_t* row_count = nullptr;
  void* workspace = nullptr;   // Ops::feed_forward_workspace bytes
  Float8Scales x_scales = {};  // if x is kFloat8, as both weights are then
  /// The scale of the [rows, intermediate] tensor in e4m3. Numbers beyond kFloat8Most times this
  /// are limited to that.
  float inner_scale = 0;
  Float8Rows quantized = {};  // what the norm gives, beside `out`; or empty
};

/// The first half of a feed-forward block: out = activation(up(x)), or with `gated` out =
/// activation(gate(x)) * up(x). Each row has the bits that FeedForwardArgs gives the same values
/// between its two layers.
struct FeedForwardUpArgs {
  TensorView x;  // [rows, E]
  LinearWeight up;
  Activation activation = Activation::kGelu;
  bool gated = false;
  TensorView out;   // [rows, intermediate]
  TensorView sums;  // [rows, up.out_features], scratch where `gated`
  const int32_t* row_count = nullptr;
  void* workspace = nullptr;  // Ops::linear_workspace bytes for x and up
};

/// out[b, n] is the maximum (with `sum`, the sum) of log(1 + max(0, x[t] . weight[n] + bias[n]))
/// over the rows t of sequence b: how relevant entry n of the vocabulary is to the sequence
/// (SPLADE, Formal et al., arXiv 2107.05720 and 2109.10086). With `twice` the logarithm is applied
/// twice. An empty sequence gives zeros. The [T, N] tensor of intermediate values is never stored.
/// Rows are summed in their order.
struct SparsePoolArgs {
  TensorView x;         // [T, K], contiguous
  LinearWeight weight;  // [at least N, K]; rows from N on are padding and ignored
  BatchView batch;
  bool sum = false;
  bool twice = false;
  TensorView out;             // [B, N] float32, contiguous
  void* workspace = nullptr;  // Ops::sparse_pool_workspace bytes
};

}  // namespace packhorse
