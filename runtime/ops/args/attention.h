// Arguments of attention, and of the rotation of its queries and keys.
#pragma once

#include <cstdint>

#include "ops/args/kv_cache.h"

namespace packhorse {

/// Computes for every token the rotation that all layers apply to its heads: the angles position(t)
/// * frequencies[j], as sine and cosine. The product is rounded to float32, because models were
/// trained that way.
///
/// With `grids` the tokens of a sequence are `prefix` rows, which are not rotated, and the cells of
/// its grid, row by row. position(t) is then 2 pi times the centre of the cell, from -1 to 1: that
/// along a column of cells for the first half of the frequencies, along a row for the others
/// (DINOv3, arXiv 2508.10104).
struct RotationArgs {
  const float* frequencies = nullptr;  // [dims / 2]
  int32_t dims = 0;
  const int32_t* position_ids = nullptr;  // [T] pos(t), or null
  const int32_t* grids = nullptr;         // [B, 2] rows and columns of cells, or null
  int64_t prefix = 0;
  BatchView batch;
  TensorView out;  // [T, Ops::rotation_columns(dims, grid)] float32, in the backend's own layout
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
  /// RotationArgs::out, or empty if nothing is rotated; with it come the frequencies and dims, and
  /// `grid`, that it was made from.
  TensorView rotation;
  const float* frequencies = nullptr;
  int32_t dims = 0;
  bool grid = false;  // whether it is that of cells of a grid
  const int32_t* row_count = nullptr;
};

/// Which keys a query sees. Kernels compute this from indices; there is no mask tensor. Query i of
/// a sequence with q_len queries and kv_len keys has the position kv_len - q_len + i among the
/// keys.
struct AttentionMask {
  bool causal = false;        // over pages, false: every query sees all keys of its sequence
  int32_t window_left = -1;   // distance to the left beyond which keys are masked; -1: no limit
  int32_t window_right = -1;  // to the right
};

/// A term that the attention kernel computes and adds to the scaled scores. i is the position of
/// the query, j that of the key.
enum class ScoreTermKind : uint8_t { kNone, kAlibi, kBucketed, kDisentangled, kGrid };

/// The rows of the table of a kGrid term with this many rows and columns of cells: one for each
/// step from cell to cell, and one each for the first token as query, as key, and as both.
inline constexpr int64_t grid_steps(int64_t rows, int64_t columns) {
  return (2 * rows - 1) * (2 * columns - 1) + 3;
}

/// The numbers of a kBucketed term (T5, MPNet) or of a kGrid term.
struct BucketBias {
  const float* table = nullptr;  // [num_buckets, H]; kGrid: [grid_steps, H]
  /// The numbers by distance, for causal attention over pages: [H, max_distance + 1] of each head,
  /// from max_distance, as which larger distances count, down to 0.
  const float* by_distance = nullptr;
};

struct ScoreTerm : BucketBias {
  ScoreTermKind kind = ScoreTermKind::kNone;
  const float* slopes = nullptr;  // kAlibi: [H]; adds -slope[h] * |i - j|
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
  /// kGrid (BEiT, Bao et al., arXiv 2106.08254): the tokens of a sequence are one without a place,
  /// and the cells of its grid, row by row. Adds the table's number of the step (rows, columns)
  /// from the key's cell to the query's. The steps of a grid of another size are those of the table
  /// resized linearly.
  int32_t grid_rows = 0;  // the table's
  int32_t grid_columns = 0;
  const int32_t* grids = nullptr;  // [B, 2]
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
  float out_scale = 0;        // if `out` is kFloat8; larger numbers are limited
  void* workspace = nullptr;  // Ops::attention_workspace bytes
};

/// The widest head of AttentionWeightsArgs.
inline constexpr int64_t kMostWeightsColumns = 512;

/// Weights by which one head of queries attends to the first `num_keys` keys of a sequence in
/// pages: out[i, j] = softmax over j of scale * q[i] . key j, in float32. All queries see these
/// keys. A row of `out` is one expression of its own query and of the keys.
struct AttentionWeightsArgs {
  TensorView q;          // [n, num_heads * head_dim]; rows may be strided
  PagedKvCache pages;    // its values are not read
  int64_t sequence = 0;  // row of pages.table
  int64_t num_keys = 0;  // 1 to pages.kv_lens[sequence], which is not looked at
  int64_t head = 0;      // one of the queries'
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;  // divides num_heads
  int32_t head_dim = 0;      // as stored
  float scale = 0;
  TensorView out;  // [n, num_keys] float32; rows may be strided
};

/// The keys and values that attention over pages appends, where it is given k and v.
inline AppendKvCacheArgs appended(const AttentionArgs& args) {
  return {args.k, args.v, args.pages, args.queries, args.num_kv_heads, args.head_dim};
}

}  // namespace packhorse
