// One argument struct per op: what a model asks of a backend. Shapes and dtypes of these structs
// are checked once, in Ops (ops.cc), for every backend.
//
// T = tokens of the batch, B = sequences, E = hidden size, H = heads, d = head size.
#pragma once

#include <cstdint>

#include "ops/activation.h"
#include "packhorse/types.h"

namespace packhorse {

/// One packed batch as the ops see it. The host numbers bound the launch. `counts`, where not null,
/// holds the exact {T, B} in device memory: a captured graph then serves every composition of its
/// bucket. On the CPU the host numbers are exact and `counts` is null.
struct BatchView {
  int64_t num_tokens = 0;
  int64_t num_sequences = 0;
  int64_t max_seqlen = 0;
  const int32_t* cu_seqlens = nullptr;  // [num_sequences + 1], in the device's memory
  const int32_t* counts = nullptr;      // {T, B}, in the device's memory, or null
};

enum class NormKind : uint8_t { kLayer, kRms };
/// kMeanSqrt: the sum by the root of the length. kWeightedMean: row i of a sequence counts i + 1
/// times.
enum class Pooling : uint8_t { kCls, kMean, kMax, kLast, kMeanSqrt, kWeightedMean };

/// A dense layer in the backend's own layout, made by a LinearPacker.
struct LinearWeight {
  int64_t in_features = 0;
  int64_t out_features = 0;
  DType dtype = DType::kFloat32;  // LinearFormat::weight; x is of LinearFormat::compute
  const void* data = nullptr;
  const float* bias = nullptr;  // [out_features] or null
};

/// gamma [E], beta [E] or null; statistics in float32.
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
/// Callers have checked that ids and positions lie within their tables.
struct EmbedArgs {
  const int32_t* ids = nullptr;           // [T]
  const int32_t* type_ids = nullptr;      // [T], or null: row 0 of `type`
  const int32_t* position_ids = nullptr;  // [T], or null: 0, 1, ... from the sequence's start
  TensorView word;                        // [vocab_size, E]
  TensorView position;                    // [num_positions, E] or empty
  TensorView type;                        // [type_vocab_size, E] or empty
  int64_t position_offset = 0;
  NormWeight norm;  // or none
  BatchView batch;
  TensorView out;  // [T, E]
};

/// out = norm(residual + activation(x W^T + bias)); each of bias, activation, residual and norm is
/// optional. `residual` may be `out`.
struct LinearArgs {
  TensorView x;  // [rows, in_features]
  LinearWeight weight;
  Activation activation = Activation::kNone;
  TensorView residual;                 // [rows, out_features] or empty
  NormWeight norm;                     // or none
  TensorView out;                      // [rows, out_features]
  const int32_t* row_count = nullptr;  // exact number of rows in device memory, or null
  void* workspace = nullptr;           // Ops::linear_workspace bytes
};

/// out = norm(residual + down(activation(up(x)))); with `gated`: down(activation(gate(x)) * up(x)).
/// One op, so that a backend may keep the [T, intermediate] tensor on chip.
struct FeedForwardArgs {
  TensorView x;  // [rows, E]
  /// [intermediate, E]; with `gated` [2 intermediate, E]: kGateBlock rows of the gate, as many of
  /// up, and so on in turn. Intermediate is then a multiple of kGateBlock.
  LinearWeight up;
  LinearWeight down;  // [E, intermediate]
  Activation activation = Activation::kGelu;
  bool gated = false;
  TensorView residual;  // [rows, E] or empty
  NormWeight norm;      // or none
  TensorView out;       // [rows, E]; may be x and residual
  const int32_t* row_count = nullptr;
  void* workspace = nullptr;  // Ops::feed_forward_workspace bytes
};

/// out[t] = x[t - width / 2], ..., x[t + width / 2] one after the other; zeros for what lies
/// outside the sequence: the input of a convolution that a dense layer then computes.
struct NeighboursArgs {
  TensorView x;       // [T, E]
  int32_t width = 0;  // odd
  BatchView batch;
  TensorView out;  // [T, width * E]
};

/// What rotates the heads of a token in every layer, by the angles position(t) * frequencies[j].
/// That product is rounded to float32, as models are trained.
struct RotationArgs {
  const float* frequencies = nullptr;  // [dims / 2]
  int32_t dims = 0;
  const int32_t* position_ids = nullptr;  // [T], or null: 0, 1, ... from the sequence's start
  BatchView batch;
  TensorView out;  // [T, Ops::rotation_columns(dims)] float32, in the backend's own layout
};

/// What happens to queries and keys before they meet, in place: each head's RMS norm, if any, then
/// the rotation of its columns j and j + dims / 2 by angle j (RoPE, Su et al., arXiv 2104.09864, in
/// the half-split form); of columns 2 j and 2 j + 1 where Ops::interleaves_heads().
struct RotateHeadsArgs {
  TensorView q;  // [T, num_heads * head_dim]; rows may be strided (a slice of fused QKV)
  TensorView k;  // [T, num_kv_heads * head_dim]
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;   // as stored
  int32_t model_dim = 0;  // of the model: the rest of each head is zero, and stays so
  NormWeight q_norm;      // of [model_dim], or none
  NormWeight k_norm;      // likewise
  TensorView rotation;    // RotationArgs::out, or empty; then with its frequencies and dims
  const float* frequencies = nullptr;
  int32_t dims = 0;
  const int32_t* row_count = nullptr;
};

/// Which keys a query sees, computed from indices, never from a mask tensor. Query i of a sequence
/// with q_len queries over kv_len keys stands at position kv_len - q_len + i.
struct AttentionMask {
  bool causal = false;
  int32_t window_left = -1;   // keys further left than this are masked; -1: no limit
  int32_t window_right = -1;  // likewise to the right
};

/// A term added to the scaled scores, computed inside the kernel.
enum class ScoreTermKind : uint8_t { kNone, kAlibi, kBucketed, kDisentangled };
struct ScoreTerm {
  ScoreTermKind kind = ScoreTermKind::kNone;
  const float* slopes = nullptr;  // kAlibi: [H]; adds -slope[h] * |i - j|
  const float* table = nullptr;   // kBucketed (T5, MPNet): [num_buckets, H]
  int32_t num_buckets = 0;
  int32_t max_distance = 0;
  /// kBucketed: half of the buckets are for keys right of the query (encoders); if not, all are for
  /// the distance to the left, and keys to the right are at distance 0 (decoders).
  bool bidirectional = true;
  /// kDisentangled (He et al., DeBERTa, arXiv 2006.03654): adds (q_i . position_keys[s] +
  /// k_j . position_queries[s]) * scale for s = slots[i - j], distances beyond the limit counting
  /// as the limit. Either table may be empty.
  TensorView position_keys;        // [num_slots, H * d]
  TensorView position_queries;     // [num_slots, H * d]
  const int32_t* slots = nullptr;  // [2 slot_limit + 1] from distance -slot_limit on; never falling
  int32_t slot_limit = 0;
};

/// Variable-length attention; queries and keys have offsets of their own, so that q_len new tokens
/// over kv_len cached ones (decoding) is the same call.
struct AttentionArgs {
  TensorView q;    // [Tq, num_heads * head_dim]; rows may be strided (a slice of fused QKV)
  TensorView k;    // [Tk, num_kv_heads * head_dim]
  TensorView v;    // [Tk, num_kv_heads * head_dim]
  TensorView out;  // [Tq, num_heads * head_dim]
  BatchView queries;
  BatchView keys;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;  // divides num_heads
  int32_t head_dim = 0;      // as stored: a multiple of Ops::head_dim_multiple()
  float scale = 0;           // of q.k, usually 1 / sqrt(head_dim of the model)
  AttentionMask mask;
  ScoreTerm term;
  bool rounded = false;       // float32 may be rounded to bfloat16 before it is multiplied
  void* workspace = nullptr;  // Ops::attention_workspace bytes
};

/// out = norm(x + residual); `residual` and the output may be x.
struct NormArgs {
  TensorView x;  // [rows, E]
  TensorView residual;
  NormWeight norm;
  TensorView out;  // [rows, E]
  const int32_t* row_count = nullptr;
};

/// out[b] = pool over the rows of sequence b, then divided by its Euclidean norm if `normalize`.
/// An empty sequence gives zeros.
struct PoolArgs {
  TensorView x;  // [T, E]
  BatchView batch;
  Pooling pooling = Pooling::kMean;
  bool normalize = false;
  TensorView out;  // [B, E], dtype of x or float32
};

/// out[b, n] = the largest, or with `sum` the sum, of log(1 + max(0, x[t] . weight[n] + bias[n]))
/// over the rows t of sequence b: how much a sequence is about each entry of the vocabulary
/// (SPLADE, Formal et al., arXiv 2107.05720 and 2109.10086). With `twice` the logarithm is taken
/// twice. An empty sequence gives zeros. What lies between is never there for all rows: no [T, N]
/// tensor. Rows are summed in their order.
struct SparsePoolArgs {
  TensorView x;         // [T, K], contiguous
  LinearWeight weight;  // out_features at least N: those from N on are not asked for
  BatchView batch;
  bool sum = false;
  bool twice = false;
  TensorView out;             // [B, N] float32, contiguous
  void* workspace = nullptr;  // Ops::sparse_pool_workspace bytes
};

/// out = x in out's dtype, rows divided by their Euclidean norm if `normalize` (by 1e-12 where it
/// is less). `out` may be x.
struct CastArgs {
  TensorView x;
  TensorView out;
  bool normalize = false;
};

}  // namespace packhorse
