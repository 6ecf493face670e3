// Arguments of compressed convolutional attention (CCA; Figliolia et al., arXiv 2510.04476).
#pragma once

#include <cstdint>

#include "ops/args/kv_cache.h"

namespace packhorse {

/// The end of the latent stream, which sequences that go on need of their tokens before, in the
/// pages in which keys and values lie (kv_cache.h).
///
/// A page has `slots` rows. The row of position p of a sequence is row p % kPageTokens % slots of
/// its page, and holds the latents of queries and keys, and those of values that the token after it
/// takes. So a page holds the state at its end, and, until it is full, the last `slots` tokens. A
/// step reads the tokens right before it; those beyond them are kept for the case that the last
/// tokens were drafts which are computed again.
struct LatentPages {
  TensorView rows;                 // [num_pages * slots, CcaArgs::state_columns()]
  int64_t slots = 0;               // up to kPageTokens
  const int32_t* table = nullptr;  // as in PagedKvCache, like the next two
  int64_t table_stride = 0;
  const int32_t* kv_lens = nullptr;
  explicit operator bool() const { return rows.rank > 0; }
};

/// Makes heads of queries, keys and values from their latents, the down-projections of the hidden
/// states. Of token t of a sequence, with q, k, v its latents and g(h) the head of keys that head h
/// of queries sees:
///
///   c = grouped(depthwise([q, k])), two causal convolutions over the tokens of the sequence
///   q'_h = c_h + (q_h + k_g(h)) / 2, and q''_h = sqrt(d) q'_h / |q'_h|
///   k'_g = c_g + (k_g + mean of q_h over the heads of g) / 2, and k''_g = temperature_g sqrt(d)
///   k'_g / |k'_g|
///   v'[c] = v[c] for columns before delayed_column; from it on, v[c] of token t - 1
///
/// q'' and k'' are then rotated as by RopeArgs. Before the first token of a sequence lie
/// zeros, over which the first convolution gives its bias; before its first value, first_values.
/// Sums are formed in float32 in an order that depends on the sizes of the layer alone, so that a
/// token has the same bits whatever is beside it, and in whatever steps its sequence comes. An
/// Euclidean norm below 2^-23 counts as 2^-23.
struct CcaArgs {
  TensorView latents;  // [T, (num_heads + 2 num_kv_heads) * head_dim]: q, k, v
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;  // divides num_heads
  int32_t head_dim = 0;      // as stored, at least model_dim
  int32_t model_dim = 0;     // d; the columns beyond it are zeros and stay zeros
  int32_t depthwise_width = 0;
  int32_t grouped_width = 0;
  const float* depthwise = nullptr;       // [depthwise_width, mixed_columns()], oldest first
  const float* depthwise_bias = nullptr;  // [(num_heads + num_kv_heads) * head_dim]
  /// [(num_heads + num_kv_heads) * grouped_width * head_dim, head_dim] in the dtype of latents:
  /// for each head, tap (oldest first) and column of the input, the columns of the output.
  TensorView grouped;
  const float* grouped_bias = nullptr;  // [(num_heads + num_kv_heads) * head_dim]
  const float* temperature = nullptr;   // [num_kv_heads]
  int32_t delayed_column = 0;           // a column of values
  const float* first_values = nullptr;  // [num_kv_heads * head_dim]; null: zeros
  TensorView rotation;                  // as in RopeArgs, like the next two
  const float* frequencies = nullptr;
  int32_t dims = 0;
  LatentPages pages;  // read before they are written; without them all sequences begin here
  BatchView batch;
  TensorView out;             // [T, columns of latents]
  void* workspace = nullptr;  // Ops::cca_workspace bytes

  constexpr int64_t mixed_columns() const { return int64_t{num_heads + num_kv_heads} * head_dim; }
  constexpr int64_t value_columns() const { return int64_t{num_kv_heads} * head_dim; }
  constexpr int64_t state_columns() const {
    return mixed_columns() + value_columns() - delayed_column;
  }
  /// Tokens before one of which it needs the latents of queries and keys.
  constexpr int64_t reach() const { return int64_t{depthwise_width} + grouped_width - 2; }
};

/// Limits of the widths of both convolutions.
inline constexpr int64_t kMostCca = 8;

}  // namespace packhorse
