// Arguments of the operators that treat each row, or each sequence, by itself.
#pragma once

#include <cstdint>

#include "ops/args/common.h"

namespace packhorse {

/// out[t] = norm(word[ids[t]] + position[pos(t) + position_offset] + type[type_ids[t]])
///
/// pos(t) counts the tokens before t in its sequence. With a `skipped_id` it counts those alone
/// that are another token, and pos(t) of such a token is -1.
///
/// The caller has checked that ids and positions lie within their tables.
struct EmbedArgs {
  const int32_t* ids = nullptr;           // [T], or null: token t takes row t of `word`
  const int32_t* type_ids = nullptr;      // [T]; null: every token takes row 0 of `type`
  const int32_t* position_ids = nullptr;  // [T] pos(t), or null
  /// [vocab_size, E]; without ids [T, E], may be `out`. Where Ops::embeds_stored_rows, a table of
  /// 16-bit floats may go with float32, and `packed_word`, a weight [vocab_size, E] in groups, may
  /// stand in its place: such rows are decoded as they are read, and multiplied by `word_scale`.
  TensorView word;
  LinearWeight packed_word = {};
  float word_scale = 1;
  /// In place of rows of `word`: token t takes row row_numbers[t] of `rows`, unless that is below
  /// 0.
  TensorView rows = {};                  // [R, E] or empty
  const int32_t* row_numbers = nullptr;  // [T] with `rows`
  TensorView position;                   // [num_positions, E] or empty
  TensorView type;                       // [type_vocab_size, E] or empty
  int64_t position_offset = 0;
  int32_t skipped_id = -1;  // -1: none; else `ids` are there, and position_offset is above 0
  NormWeight norm;          // or none
  BatchView batch;
  TensorView out;  // [T, E]
};

/// Row t of `out` is the rows x[stride t - width / 2] to x[stride t + width / 2] one after the
/// other, with zeros for rows outside the sequence. A dense layer over this input computes a
/// convolution.
struct UnfoldArgs {
  TensorView x;        // [stride * T, E]; a sequence has `stride` rows for each row of `out`
  int32_t width = 0;   // odd
  int32_t stride = 1;  // rows of x from one row of `out` to the next
  BatchView batch;     // that of `out`
  TensorView out;      // [T, width * E]
};

/// out = norm(x + residual) + added. `residual` and `added` are optional; both and `out` may be the
/// same memory as x. With `quantized` there is no residual and nothing is added; without a norm the
/// rows are quantised as they are, and `out` may be empty.
struct NormArgs {
  TensorView x;  // [rows, E]
  TensorView residual = {};
  NormWeight norm;
  TensorView out;  // [rows, E]
  TensorView added = {};
  const int32_t* row_count = nullptr;
  Float8Rows quantized = {};
};

/// Ways to make one row of the rows of a sequence. kMeanSqrt divides their sum by the square root
/// of the sequence's length. kWeightedMean is the mean in which row i of a sequence, counted from
/// 0, has weight i + 1. kSecond is the second row, and kPatchMean the mean of the rows after the
/// first PoolArgs::prefix; where there is no such row, they give zeros.
enum class Pooling : uint8_t {
  kCls,
  kMean,
  kMax,
  kLast,
  kMeanSqrt,
  kWeightedMean,
  kSecond,
  kPatchMean
};

/// out[b] is the pool over the rows of sequence b, divided by its Euclidean norm if `normalize` is
/// true. An empty sequence gives zeros. With a `skipped_id` kLast takes the last row whose token is
/// another one, or, where there is none, the first row.
struct PoolArgs {
  TensorView x;  // [T, E]
  BatchView batch;
  Pooling pooling = Pooling::kMean;
  bool normalize = false;
  TensorView out;                // [B, E], dtype of x or float32
  const int32_t* ids = nullptr;  // [T], with a skipped_id
  int32_t skipped_id = -1;       // -1: none
  int64_t prefix = 0;            // rows that kPatchMean leaves out
};

/// out[i] = x[rows[i]] converted to the dtype of `out`. With `normalize`, each row is divided by
/// its Euclidean norm, or by 1e-12 if the norm is smaller. Otherwise x is multiplied by `scale`,
/// and with a `soft_cap` over 0 the product z becomes soft_cap * tanh(z / soft_cap). Rows of `out`
/// from *row_count on become zeros, and those of empty sequences; so do the last `padding` columns
/// of `out`, which x does not have. `out` may be the same memory as x if `rows` is null.
struct CastArgs {
  TensorView x;
  TensorView out;
  int64_t padding = 0;
  bool normalize = false;
  float scale = 1;
  float soft_cap = 0;
  const int32_t* rows = nullptr;        // [rows of out], each a row of x; null: 0, 1, ...
  const int32_t* row_count = nullptr;   // [1] in device memory; null: all rows
  const int32_t* cu_seqlens = nullptr;  // [rows of out + 1] where rows are of sequences, or null
};

/// out[i, j] = x[i, j] - log(sum over k of exp(x[i, k])): log-probabilities of logits.
struct LogSoftmaxArgs {
  TensorView x;    // [rows, columns]
  TensorView out;  // [rows, columns] float32; may be x
};

/// out = activation(x), or with `gated` activation(gate) * up of the blocks of kGateBlock columns
/// that alternate in x. With `slots` the other rows of `out` stay as they are: those to which
/// LoraArgs with these slots and ranks adds nothing.
struct ActivateArgs {
  TensorView x;  // [rows, columns of out], with `gated` twice as many; contiguous, as is `out`
  Activation activation = Activation::kGelu;
  bool gated = false;
  const int32_t* slots = nullptr;  // [rows] or null
  const int32_t* ranks = nullptr;
  TensorView out;
  const int32_t* row_count = nullptr;
};

}  // namespace packhorse
