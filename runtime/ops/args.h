// One argument struct for each operator that a model asks of a backend. Ops (ops_*.cc) checks the
// shapes and dtypes of these structs once, for every backend.
//
// In the shapes below, T is the number of tokens in the batch, B the number of sequences, E the
// hidden size, H the number of heads and d the size of a head.
#pragma once

#include <cstdint>

#include "ops/activation.h"
#include "ops/args/float8.h"
#include "ops/args/kv_cache.h"
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

enum class NormKind : uint8_t { kLayer, kRms };
/// How the rows of a sequence become one row. kMeanSqrt divides their sum by the square root of the
/// sequence's length. kWeightedMean is the mean in which row i of a sequence, counted from 0, has
/// weight i + 1.
enum class Pooling : uint8_t { kCls, kMean, kMax, kLast, kMeanSqrt, kWeightedMean };

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
  TensorView position;  // [num_positions, E] or empty
  TensorView type;      // [type_vocab_size, E] or empty
  int64_t position_offset = 0;
  int32_t skipped_id = -1;  // -1: none; else `ids` are there, and position_offset is above 0
  NormWeight norm;          // or none
  BatchView batch;
  TensorView out;  // [T, E]
};

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
  Float8Scales x_scales = {};  // of x, if it is kFloat8; `out` has then LinearFormat::compute
  Float8Rows quantized = {};   // what the norm gives, beside `out`; or empty
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
  Float8Scales x_scales = {};  // of x, if it is kFloat8, as both weights are then
  /// The scale of the [rows, intermediate] tensor in e4m3. Numbers beyond kFloat8Most times this
  /// are limited to that.
  float inner_scale = 0;
  Float8Rows quantized = {};  // what the norm gives, beside `out`; or empty
};

/// Row t of `out` is the rows x[t - width / 2] to x[t + width / 2] one after the other, with zeros
/// for rows outside the sequence. A dense layer over this input computes a convolution.
struct UnfoldArgs {
  TensorView x;       // [T, E]
  int32_t width = 0;  // odd
  BatchView batch;
  TensorView out;  // [T, width * E]
};

/// Computes for every token the rotation that all layers apply to its heads: the angles position(t)
/// * frequencies[j], as sine and cosine. The product is rounded to float32, because models were
/// trained that way.
struct RotationArgs {
  const float* frequencies = nullptr;  // [dims / 2]
  int32_t dims = 0;
  const int32_t* position_ids = nullptr;  // [T] pos(t), or null
  BatchView batch;
  TensorView out;  // [T, Ops::rotation_columns(dims)] float32, in the backend's own layout
};

/// Prepares queries and keys for attention, in place. Each head first gets its RMS norm, if there
/// is one. Then its columns j and j + dims / 2 are rotated by angle j (RoPE, Su et al., arXiv
/// 2104.09864, in the half-split form). Where Ops::interleaves_heads() is true, those two columns
/// are stored as 2 j and 2 j + 1.
struct RopeArgs {
  TensorView q;  // [T, num_heads * head_dim]; rows may be strided (a slice of fused QKV)
  TensorView k;  // [T, num_kv_heads * head_dim]
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;   // as stored, at least model_dim
  int32_t model_dim = 0;  // the model's own size; the columns beyond it are zero and stay zero
  NormWeight q_norm;      // gamma [model_dim], or none
  NormWeight k_norm;      // gamma [model_dim], or none
  /// RotationArgs::out, or empty if nothing is rotated; with it come the frequencies and dims that
  /// it was made from.
  TensorView rotation;
  const float* frequencies = nullptr;
  int32_t dims = 0;
  const int32_t* row_count = nullptr;
};

/// Which keys a query sees. Kernels compute this from indices; there is no mask tensor. Query i of
/// a sequence with q_len queries and kv_len keys has the position kv_len - q_len + i among the
/// keys.
struct AttentionMask {
  bool causal = false;
  int32_t window_left = -1;   // distance to the left beyond which keys are masked; -1: no limit
  int32_t window_right = -1;  // the same to the right
};

/// A term that the attention kernel computes and adds to the scaled scores. i is the position of
/// the query, j that of the key.
enum class ScoreTermKind : uint8_t { kNone, kAlibi, kBucketed, kDisentangled };
struct ScoreTerm {
  ScoreTermKind kind = ScoreTermKind::kNone;
  const float* slopes = nullptr;  // kAlibi: [H]; adds -slope[h] * |i - j|
  const float* table = nullptr;   // kBucketed (T5, MPNet): [num_buckets, H]
  int32_t num_buckets = 0;
  int32_t max_distance = 0;
  /// kBucketed: if true (encoders), half of the buckets are for keys to the right of the query. If
  /// false (decoders), all buckets are for distances to the left, and keys to the right count as
  /// distance 0.
  bool bidirectional = true;
  /// kDisentangled (He et al., DeBERTa, arXiv 2006.03654): adds (q_i . position_keys[s] + k_j .
  /// position_queries[s]) * scale with s = slots[i - j]. Distances beyond slot_limit count as
  /// slot_limit. One of the two tables may be empty; its term is then left out.
  TensorView position_keys;     // [num_slots, H * d]
  TensorView position_queries;  // [num_slots, H * d]
  const int32_t* slots =
      nullptr;  // [2 slot_limit + 1] from distance -slot_limit on; never decreasing
  int32_t slot_limit = 0;
};

/// Attention over sequences of different lengths. Queries and keys have separate offsets, so that
/// decoding, where q_len new tokens attend to kv_len cached ones, is the same call.
struct AttentionArgs {
  TensorView q;    // [Tq, num_heads * head_dim]; rows may be strided (a slice of fused QKV)
  TensorView k;    // [Tk, num_kv_heads * head_dim]
  TensorView v;    // [Tk, num_kv_heads * head_dim]
  TensorView out;  // [Tq, num_heads * head_dim]
  BatchView queries;
  BatchView keys;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;  // divides num_heads
  int32_t head_dim = 0;      // as stored, a multiple of Ops::head_dim_multiple()
  float scale = 0;           // factor of q . k, usually 1 / sqrt(head_dim of the model)
  AttentionMask mask;
  ScoreTerm term;
  /// Where keys and values lie if they are in a cache. k and v are then those of the queries' own
  /// tokens, which are appended first (as by AppendKvCacheArgs), or empty, and `keys` is; query i
  /// of sequence b has the position kv_lens[b] - q_len + i.
  PagedKvCache pages;
  float soft_cap = 0;         // if not 0, a scaled score s becomes soft_cap * tanh(s / soft_cap)
  bool rounded = false;       // whether float32 inputs may be rounded to bfloat16
  float out_scale = 0;        // of `out`, if it is kFloat8; larger numbers are limited
  void* workspace = nullptr;  // Ops::attention_workspace bytes
};

/// Writes the keys and values of the batch's tokens to their pages: those of token i of sequence b
/// to position kv_lens[b] - q_len + i. They are rounded to the dtype of the pages; in pages of
/// kFloat8 each head of a token gets its scales (float8.h's quantize_float8; a head with a number
/// that is not finite has a NaN for its scale). Attention reads
/// the tokens of this step from the pages, too, so their results do not depend on the step in which
/// a token came.
struct AppendKvCacheArgs {
  TensorView k;  // [T, num_kv_heads * head_dim]; rows may be strided (a slice of fused QKV)
  TensorView v;  // [T, num_kv_heads * head_dim]; rows may be strided
  PagedKvCache pages;
  BatchView batch;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;  // as stored
};

/// What attention over pages appends, where it is given k and v.
inline AppendKvCacheArgs appended(const AttentionArgs& args) {
  return {args.k, args.v, args.pages, args.queries, args.num_kv_heads, args.head_dim};
}

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

/// out = x converted to the dtype of `out`. With `normalize`, each row is divided by its Euclidean
/// norm, or by 1e-12 if the norm is smaller. Otherwise x is multiplied by `scale`, and with a
/// `soft_cap` over 0 the product z becomes soft_cap * tanh(z / soft_cap). `out` may be the same
/// memory as x.
struct CastArgs {
  TensorView x;
  TensorView out;
  bool normalize = false;
  float scale = 1;
  float soft_cap = 0;
};

}  // namespace packhorse
