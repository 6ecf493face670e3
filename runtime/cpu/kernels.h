// Our own vector kernels, which are compiled once for each instruction set and chosen at run time.
//
// This header defines only plain structs of pointers and sizes. Files that are compiled for
// instructions which the machine may lack include it, so it must not bring inline functions with it
// (see simd.h). Arrays indexed by dtype have float32 at 0 and bfloat16 at 1. Strides count
// elements.
#pragma once

#include <stdint.h>

#include "core/float8_limits.h"
#include "ops/activation.h"

namespace packhorse::cpu {

/// gamma and beta are [columns], each may be null. If gamma is null there is no normalisation.
struct NormParams {
  const float* gamma = nullptr;
  const float* beta = nullptr;
  float eps = 0;
  bool rms = false;
  int64_t padding = 0;  // columns at the end that no statistic counts
};

/// out = norm(x + residual) + added, row by row. `residual` and `added` may be null, and may be the
/// same memory as out.
struct NormRows {
  const void* x = nullptr;
  const void* residual = nullptr;
  const void* added = nullptr;
  void* out = nullptr;
  int64_t x_stride = 0, residual_stride = 0, added_stride = 0, out_stride = 0;
  int64_t rows = 0, columns = 0;
  NormParams norm;
};

/// out = norm(word + position + type) of one token; position and type may be null.
struct EmbedRow {
  const void* word = nullptr;
  const void* position = nullptr;
  const void* type = nullptr;
  void* out = nullptr;
  int64_t columns = 0;
  NormParams norm;
};

/// out = the pool of `rows` rows, divided by its Euclidean norm if `normalize`. Without rows it is
/// zeros.
struct PoolRows {
  const void* x = nullptr;
  void* out = nullptr;
  int64_t x_stride = 0;
  int64_t rows = 0, columns = 0;
  float factor = 1;  // multiplies the sum
  bool take_max = false;
  bool weigh_rows = false;  // whether row i has weight i + 1 in the sum
  bool normalize = false;
};

/// to = from, or with a soft_cap over 0 soft_cap * tanh(scale * from / soft_cap), or with another
/// scale than 1 scale * from.
struct CastElements {
  const void* from = nullptr;
  void* to = nullptr;
  int64_t count = 0;
  float scale = 1;
  float soft_cap = 0;
};

/// out = activation(gate) * up. In the 2 * `columns` elements of a row of x, kGateBlock elements of
/// gate and kGateBlock of up alternate. `out` may be the same memory as x if its rows are no
/// further apart.
struct GateRows {
  const void* x = nullptr;
  void* out = nullptr;
  int64_t x_stride = 0, out_stride = 0;
  int64_t rows = 0, columns = 0;  // columns is a multiple of kGateBlock
  Activation activation = Activation::kNone;
};

/// values = round((x - offset) / scale), where offset is the smallest element of the row and scale
/// is such that the largest element gives `levels`. If a row contains NaN or Inf, its scale and
/// offset are NaN.
struct QuantizeRows {
  const void* x = nullptr;
  int64_t x_stride = 0;
  int64_t rows = 0, columns = 0;
  float levels = 0;
  uint8_t* values = nullptr;  // [rows, columns], contiguous
  float* scales = nullptr;    // [rows]
  float* offsets = nullptr;   // [rows]
};

/// out = activation(sums * scale of the row * scale of the column + offset of the row * sum of the
/// column + bias)
struct DequantizeRows {
  const int32_t* sums = nullptr;  // [rows, columns], contiguous
  const float* scales = nullptr;  // [rows]
  const float* offsets = nullptr;
  const float* weight_scales = nullptr;  // [columns]
  const float* weight_sums = nullptr;
  const float* bias = nullptr;  // or null
  void* out = nullptr;
  int64_t out_stride = 0;
  int64_t rows = 0, columns = 0;
  Activation activation = Activation::kNone;
};

/// Normalises (RMS norm, if gamma is not null) the first model_dim columns of each head of one
/// token, then rotates columns j and j + pairs by cosines[j] and sines[j].
struct RotateRow {
  void* x = nullptr;  // [heads, head_dim]
  int64_t heads = 0;
  int head_dim = 0, model_dim = 0;
  NormParams norm;
  const float* cosines = nullptr;  // [pairs]
  const float* sines = nullptr;
  int pairs = 0;
  float* scratch = nullptr;  // [head_dim]
};

/// out = activation(x W^T + bias) in float32, for any number of rows and columns. The bits of a sum
/// depend only on its own row and column.
struct MultiplyRows {
  const float* x = nullptr;
  int64_t x_stride = 0;
  const float* weight = nullptr;  // packed
  const float* bias = nullptr;    // or null
  float* out = nullptr;
  int64_t out_stride = 0;
  int64_t rows = 0, in_features = 0, columns = 0;
  Activation activation = Activation::kNone;
};

/// packed = the columns of W in the order that MultiplyRows reads. Columns may be packed, and read,
/// in parts that begin at multiples of kPackedColumns.
inline constexpr int64_t kPackedColumns = 32;
struct PackColumns {
  const float* weight = nullptr;  // [columns, in_features]
  int64_t in_features = 0, columns = 0;
  float* packed = nullptr;  // [in_features * columns up to the next multiple of kPackedColumns]
};

/// The columns that MultiplyStripe computes: a stripe of a weight in the layout that oneDNN gives
/// it. For every group of 2 (bfloat16) or 4 (int8) input features it has the elements of the group
/// of one column after those of another; after the last input feature come zeros, up to the next
/// multiple of 16 groups.
inline constexpr int64_t kStripeColumns = 64;
/// The most rows for which reading the weights from memory is what limits a product.
inline constexpr int64_t kSkinnyRows = 16;

/// out = x W^T + bias for 1 to kSkinnyRows rows and kStripeColumns columns, which reads the weight
/// from memory once. x and the weight are bfloat16, and the bits of a sum are those of oneDNN's
/// kernels; or x is uint8, the weight int8, and `out` the exact sums without a bias.
struct MultiplyStripe {
  const void* x = nullptr;
  int64_t x_stride = 0;
  const void* weight = nullptr;
  const float* bias = nullptr;  // [columns], or null
  void* out = nullptr;
  int64_t out_stride = 0;
  int64_t rows = 0, in_features = 0, columns = 0;
  /// A sum is the sum, in order, of sums of so many input features (bfloat16 only; a multiple of
  /// 32).
  int64_t chunk = 0;
  int64_t stripe_bytes = 0;  // from this stripe to the next, which may be prefetched
};

/// Columns of a panel of a weight for MultiplyPanels.
inline constexpr int64_t kPanelColumns = 16;
/// Rows of x are read, and those of a weight filled up with zeros, in pieces of so many bytes.
inline constexpr int64_t kPieceBytes = 16;

/// out = activation(x W^T + bias) for any number of rows and columns. x and the weight are
/// bfloat16; or x is uint8, the weight int8, and `out` the exact sums, without a bias. The weight
/// is packed in panels of kPanelColumns columns: for every group of input features, of
/// Kernels::panel_group_bytes bytes, the group of one column after that of another. The bits of a
/// sum depend only on its own row and column.
struct MultiplyPanels {
  const void* x = nullptr;
  int64_t x_stride = 0;
  const void* weight = nullptr;   // of the first column
  const float* bias = nullptr;    // or null; only for bfloat16
  const int32_t* sums = nullptr;  // [columns] of the weights of a column, only for int8
  void* out = nullptr;
  int64_t out_stride = 0;
  int64_t rows = 0, in_features = 0, columns = 0;
  Activation activation = Activation::kNone;
};

/// Features of a row of x that are quantised together for a product with weights in groups. Rows
/// are filled up with zeros to a multiple of them.
inline constexpr int64_t kGroupBlock = 32;
/// Features whose sum is kept.
inline constexpr int64_t kGroupSpan = 16;

/// values = round(x / scale) to nearest, ties to even, where scale = max |x| / 127 of the block. A
/// block that contains NaN or Inf has the scale NaN.
struct QuantizeBlocks {
  const void* x = nullptr;
  int64_t x_stride = 0;
  int64_t rows = 0, columns = 0;
  int8_t* values = nullptr;        // [rows, columns up to the next multiple of kGroupBlock]
  float* scales = nullptr;         // [rows, blocks]
  int32_t* sums = nullptr;         // [rows, 2 * blocks], of every kGroupSpan values
  const int32_t* order = nullptr;  // [columns] the column of x that comes at each place, or null
};

/// out = activation(x W^T + bias) for a stripe of up to kStripeColumns columns whose weights are
/// quantised in groups (WeightGroups). For every group of 16, or 32 features of a larger one, the
/// sum of the products of integers is exact; it is converted to float32, multiplied by the scale
/// of the weights, and that times the scale of x is added (fma). With minima, the minimum times
/// (scale of x times the sum of x) is added next. So a result does not depend on the other rows.
struct MultiplyGroupwise {
  const int8_t* x = nullptr;  // as QuantizeBlocks makes them
  const float* x_scales = nullptr;
  const int32_t* x_sums = nullptr;
  const uint8_t* weight = nullptr;  // of this stripe, packed (gemm_groupwise.h)
  const float* bias = nullptr;      // [columns], or null
  void* out = nullptr;
  int64_t out_stride = 0;
  int64_t rows = 0, blocks = 0, columns = 0;
  int bits = 0, group = 0;
  bool minima = false;
  Activation activation = Activation::kNone;
};

/// The most queries in one attention tile, and the most keys that it processes at a time.
inline constexpr int kQueryTile = 128;
inline constexpr int kKeyTile = 128;
/// The most queries that a kernel processes together. Tiles begin at multiples of this number, so
/// that a query always has the same neighbours, whatever the size of its tile.
inline constexpr int kQueryGroup = 32;

/// Stands for a window without a limit.
inline constexpr int64_t kUnlimited = int64_t{1} << 40;

/// One tile of queries of one head of one sequence, and all keys of that sequence.
struct AttentionTile {
  const void* q = nullptr;  // the tile's first row, this head's first column
  const void* k = nullptr;  // the sequence's first row
  const void* v = nullptr;
  void* out = nullptr;
  int64_t q_stride = 0, k_stride = 0, v_stride = 0, out_stride = 0;
  int queries = 0;             // in this tile, at most kQueryTile
  int64_t keys = 0;            // in the sequence
  int64_t first_position = 0;  // position of the tile's first query among the keys
  int head_dim = 0;            // a multiple of 16
  float scale = 0;
  bool rounded = false;  // see AttentionArgs
  // Key j is visible from position i if i - left <= j <= i + right.
  int64_t left = 0, right = 0;
  // If slope is not null, -slope * |i - j| is added to a score. If table is not null, table[bucket
  // of j - i] is added.
  const float* slope = nullptr;
  const float* table = nullptr;  // this head's column; rows are table_stride apart
  int64_t table_stride = 0;
  const int32_t* bucket_starts = nullptr;  // [side_buckets] smallest distance in each bucket
  int side_buckets = 0;                    // number of buckets in one direction
  bool bidirectional = true;               // whether keys to the right have their own buckets
  // If slots is not null, scale * (query . position_keys[s] + key . position_queries[s]) is added
  // to a score, where s = slots[clamp(i - j, -slot_limit, slot_limit)]. Either table may be null.
  const void* position_keys = nullptr;  // this head's columns; rows are position_stride apart
  const void* position_queries = nullptr;
  int64_t position_stride = 0;
  const int32_t* slots = nullptr;  // points to the slot of distance 0
  int64_t slot_limit = 0;
  float* scratch = nullptr;  // [attention_scratch_floats(head_dim)]
};

/// The number of distances between the queries and the keys of a pair of tiles, and so of the slots
/// that they use.
inline constexpr int kTileDistances = kQueryTile + kKeyTile;

/// The number of floats in an AttentionTile's scratch (TileScratch). It holds queries and sums,
/// keys and values, scores, maxima and denominators, and score terms. For relative terms it also
/// holds rows of the position tables, their products with queries and keys, and slots.
inline constexpr int64_t attention_scratch_floats(int64_t head_dim) {
  return (3 * kQueryTile + 2 * kKeyTile + kTileDistances) * head_dim + kQueryGroup * kKeyTile +
         2 * kQueryTile + 2 * kTileDistances + kQueryGroup * kTileDistances +
         kKeyTile * kTileDistances;
}

/// kPageTokens of ops/args/kv_cache.h, which brings functions with it.
inline constexpr int kPageKeys = 64;
/// The number of keys in a chunk. Attention over pages restarts its sums at every multiple of this
/// position and merges chunks in order, so that a long sequence has the same bits whether or not
/// several threads share it. It is a constant so that a batch cannot change the arithmetic.
inline constexpr int64_t kChunkKeys = 512;

/// Beyond any position.
inline constexpr int64_t kMostPositions = 1 << 30;

/// Rows of attention over pages, of one sequence and one head of keys: row r is head r % group of
/// query r / group. Query i stands at position first_position + i and sees keys j with
/// position - left <= j <= position.
struct PagedTile {
  const void* q = nullptr;  // the sequence's first row, the first column of the group's heads
  void* out = nullptr;
  int64_t q_stride = 0, out_stride = 0;
  int64_t first_row = 0;
  int rows = 0;  // of this tile, at most kQueryTile
  int group = 1;
  int head_dim = 0;       // a multiple of 16
  bool bfloat16 = false;  // whether q, keys and values are
  int64_t first_position = 0;
  const void* keys = nullptr;  // of page 0, this head's first row
  const void* values = nullptr;
  int64_t page_stride = 0;  // elements from page to page
  /// Of pages in e4m3, the scales of page 0 and this head; those of a page are page_stride /
  /// head_dim floats behind those of the page before. Else null.
  const float* key_scales = nullptr;
  const float* value_scales = nullptr;
  const int32_t* table = nullptr;  // pages of the sequence
  int64_t left = 0;
  float scale = 0;
  float soft_cap = 0;             // or 0
  const float* slopes = nullptr;  // [group], or null
  float* scratch = nullptr;       // paged_scratch_floats(head_dim)
};

/// Queries, keys and values, scores, slopes and positions of a PagedTile.
inline constexpr int64_t paged_scratch_floats(int64_t head_dim) {
  return (kQueryTile + 2 * kPageKeys) * head_dim + kPageKeys * kQueryGroup + 2 * kQueryTile;
}

/// Where the softmax of a tile's rows stands after some keys: the maximum of the scores, the sum of
/// exp(score - maximum), and that of exp(score - maximum) times values.
struct SoftmaxState {
  float* sums = nullptr;  // [head_dim, stride], or of up to 8 rows [rows, head_dim]
  float* maximum = nullptr;
  float* denominator = nullptr;
  int64_t stride = 0;
};

/// out[r] = x . a[r] for each of `rows` rows of a.
struct LoraShrink {
  const void* x = nullptr;  // [columns]
  const void* a = nullptr;  // [rows, columns], contiguous
  float* out = nullptr;     // [rows]
  int64_t rows = 0, columns = 0;
};

/// out[c] += sum over r < rank of inner[part of c, r] * b[r, c]
struct LoraExpand {
  const float* inner = nullptr;    // [parts, max_rank]
  const void* b = nullptr;         // rows are b_stride apart
  const int32_t* parts = nullptr;  // of every 8 columns; 16 of them are of one part; or null
  void* out = nullptr;             // [columns]
  int64_t b_stride = 0;
  int64_t columns = 0;
  int rank = 0, max_rank = 0;
};

/// out = activation(x), element by element.
struct ActivateElements {
  const void* x = nullptr;
  void* out = nullptr;
  int64_t count = 0;
  Activation activation = Activation::kNone;
};

/// The most rows of a CcaHead.
inline constexpr int kCcaRows = 48;

/// One head of queries or keys of CcaArgs, of up to kCcaRows tokens.
struct CcaHead {
  /// [rows, depthwise_width + grouped_width - 1] where the latents of a token and of those before
  /// it begin, oldest first; null: they are zeros.
  const void* const* taps = nullptr;
  int rows = 0;
  int depthwise_width = 0, grouped_width = 0;
  int head_dim = 0;
  int64_t column = 0;                // of the head in the latents
  const float* depthwise = nullptr;  // the head's columns; rows are depthwise_stride apart
  int64_t depthwise_stride = 0;
  const float* depthwise_bias = nullptr;  // the head's columns
  const void* grouped = nullptr;          // [grouped_width * head_dim, head_dim] of the head
  const float* grouped_bias = nullptr;    // the head's columns
  /// The mean of the head and of the mean of these heads, one after the other, is added.
  int64_t others_column = 0;
  int num_others = 0;
  float length = 0;                 // of the head before its rotation
  const float* rotation = nullptr;  // rows of cosines and sines, [pairs] each
  int64_t rotation_stride = 0;
  int pairs = 0;
  void* out = nullptr;  // the head's columns of the first token
  int64_t out_stride = 0;
  float* scratch = nullptr;  // convolve_scratch_floats
};

/// Inputs of the second convolution, and the sums of rows.
inline constexpr int64_t convolve_scratch_floats(int64_t head_dim, int64_t grouped_width) {
  return kCcaRows * (grouped_width + 1) * head_dim;
}

/// The elements of one head in e4m3, and the scale by which they are to be multiplied.
struct QuantizeHead {
  const void* x = nullptr;  // [head_dim], a multiple of 16
  uint8_t* out = nullptr;
  float* scale = nullptr;
  int head_dim = 0;
};

struct Kernels {
  void (*norm_rows[2][2])(const NormRows&);  // [dtype of x][dtype of residual and out]
  void (*embed_row[2])(const EmbedRow&);
  void (*pool_rows[2][2])(const PoolRows&);  // [dtype of x][dtype of out]
  void (*cast[2][2])(const CastElements&);   // [from][to]
  void (*gate_rows[2])(const GateRows&);
  void (*quantize_rows[2])(const QuantizeRows&);      // [dtype of x]
  void (*dequantize_rows[2])(const DequantizeRows&);  // [dtype of out]
  void (*rotate_row[2])(const RotateRow&);
  void (*attention[2])(const AttentionTile&);
  void (*pack_paged_queries[2])(const PagedTile&);  // [dtype of q], before attend_chunk
  void (*quantize_head[2])(const QuantizeHead&);    // [dtype of x]
  /// [of pages: float32, bfloat16, e4m3]
  void (*attend_chunk[3])(const PagedTile&, int64_t chunk, const SoftmaxState&);
  void (*clear_state)(const SoftmaxState&, int rows, int head_dim);
  void (*merge_chunks)(const SoftmaxState& into, const SoftmaxState& next, int rows, int head_dim);
  void (*write_paged_rows[2])(const PagedTile&, const SoftmaxState&);  // [dtype of out]
  void (*multiply)(const MultiplyRows&);
  void (*pack_columns)(const PackColumns&);
  int64_t panel_group_bytes;                            // 0: there is no MultiplyPanels
  void (*multiply_panels[2])(const MultiplyPanels&);    // [dtype of out]; null on x86-64
  void (*multiply_panels_int8)(const MultiplyPanels&);  // null on x86-64
  void (*multiply_stripe[2])(const MultiplyStripe&);    // [dtype of out]; null without AVX512-BF16
  void (*multiply_stripe_int8)(const MultiplyStripe&);  // null without AVX-512; needs VNNI or AMX
  void (*quantize_blocks[2])(const QuantizeBlocks&);    // [dtype of x]
  void (*multiply_groupwise[2])(const MultiplyGroupwise&);       // [dtype of out]
  void (*multiply_groupwise_vnni[2])(const MultiplyGroupwise&);  // null without AVX-512; needs VNNI
  void (*lora_shrink[2])(const LoraShrink&);
  void (*lora_expand[2])(const LoraExpand&);
  void (*activate[2])(const ActivateElements&);
  void (*convolve_head[2])(const CcaHead&);  // [dtype of latents]
};

extern const Kernels kSse41Kernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
extern const Kernels kAvx512Bf16Kernels;
extern const Kernels kAmxKernels;
extern const Kernels kNeonKernels;
extern const Kernels kNeonDotKernels;
extern const Kernels kNeonMatmulKernels;

/// The kernels for this machine (cpu_features).
const Kernels& kernels_here();

}  // namespace packhorse::cpu
