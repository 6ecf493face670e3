// Tasks of the vector kernels of attention, over a batch and over pages of a cache.
#pragma once

#include <stdint.h>

namespace packhorse::cpu {

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
  // If grid_table is not null, the number of the step from the key's cell to the query's is added
  // (ScoreTermKind::kGrid). It is this head's column, resized to the sequence's grid, times
  // log2(e).
  const float* grid_table = nullptr;  // [grid_steps(grid_rows, grid_columns)]
  int32_t grid_rows = 0, grid_columns = 0;
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
/// position - left <= j <= position. Where the mask is not causal, all queries stand at the last
/// key.
struct PagedTile {
  const void* q = nullptr;  // the sequence's first row, the first column of the group's heads
  void* out = nullptr;
  int64_t q_stride = 0, out_stride = 0;
  int64_t first_row = 0;
  int rows = 0;  // in this tile, at most kQueryTile
  int group = 1;
  int head_dim = 0;       // a multiple of 16
  bool bfloat16 = false;  // whether keys and values are, and q is or may be rounded to it
  int64_t first_position = 0;
  bool causal = true;
  const void* keys = nullptr;  // first row of this head in page 0
  const void* values = nullptr;
  int64_t page_stride = 0;  // elements from page to page
  /// Scales of page 0 and this head, where pages are in e4m3; those of a page are page_stride /
  /// head_dim floats behind those of the page before. Else null.
  const float* key_scales = nullptr;
  const float* value_scales = nullptr;
  const int32_t* table = nullptr;  // pages of the sequence
  int64_t left = 0;
  float scale = 0;
  float soft_cap = 0;             // or 0
  const float* slopes = nullptr;  // [group], or null
  /// Bucketed terms by distance, from max_distance, as which larger ones count, down to 0: [group,
  /// max_distance + 1], or null.
  const float* by_distance = nullptr;
  int32_t max_distance = 0;
  float* scratch = nullptr;  // paged_scratch_floats(head_dim)
};

/// Queries, keys and values, scores, slopes, positions and heads of a PagedTile.
inline constexpr int64_t paged_scratch_floats(int64_t head_dim) {
  return (kQueryTile + 2 * kPageKeys) * head_dim + kPageKeys * kQueryGroup + 3 * kQueryTile;
}

/// Where the softmax of a tile's rows stands after some keys: the maximum of the scores, the sum of
/// exp(score - maximum), and that of exp(score - maximum) times values.
struct SoftmaxState {
  float* sums = nullptr;  // [head_dim, stride], or of up to 8 rows [rows, head_dim]
  float* maximum = nullptr;
  float* denominator = nullptr;
  int64_t stride = 0;
};

/// The elements of one head in e4m3, and the scale by which they are to be multiplied.
struct QuantizeHead {
  const void* x = nullptr;  // [head_dim], a multiple of 16
  uint8_t* out = nullptr;
  float* scale = nullptr;
  int head_dim = 0;
};

}  // namespace packhorse::cpu
