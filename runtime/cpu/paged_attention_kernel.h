// Attention over pages of a cache, a tile of rows at a time. Included by kernels_body.h.
//
// The products are those of attention_kernel.h: a lane of a vector holds one row, which is one head
// of one query, and never meets another lane. The heads that share keys lie side by side, so that a
// key is read once for all of them. A row's bits depend on nothing but its own query, position and
// keys:
//
// - Keys are taken in chunks of kChunkKeys from position 0 on. A chunk starts without any maximum
//   or sum; merge_chunks puts the results of chunks together, in their order.
// - In a chunk, keys are taken in tiles of kPageTokens. A tile renews the maximum, and its weights
//   are summed in four chains, which are dealt by the key's place in its page.
// - Keys and values in e4m3 are multiplied as the numbers that they are: the key's scale is applied
//   to its scores, and the value's to the weights, behind the sum of weights.
// - Keys that a row does not see have the score -infinity and so the weight 0, which changes no sum
//   and no maximum. They may therefore be computed, where another row of the tile sees them, or be
//   left out. Only the sign of a zero may differ: the result is added to +0 at the end.

struct PagedScratch {
  PagedScratch(float* at, int64_t d)
      : queries(at),
        keys(queries + kQueryTile * d),
        values(keys + kPageKeys * d),
        scores(values + kPageKeys * d),
        slopes(scores + kPageKeys * kQueryGroup),
        positions(reinterpret_cast<int32_t*>(slopes + kQueryTile)) {}

  // By AMX queries, keys and values hold what paged_attention_amx_kernel.h says.
  float* queries;      // [d, kQueryTile], scaled; of few rows [rows, d]
  float* keys;         // [kPageKeys, d], where they are not float32
  float* values;       // [kPageKeys, d], likewise
  float* scores;       // [kPageKeys, kGroup]
  float* slopes;       // [kQueryTile] of each row's head, times log2(e)
  int32_t* positions;  // [kQueryTile] of each row's query
};

// Of one page and head in e4m3, by what each token's key and value are to be multiplied; else null.
struct PageScales {
  const float* keys = nullptr;  // [kPageKeys]
  const float* values = nullptr;
};

// One page, of the tile's head.
template <class T>
struct PageOf {
  PageOf(const PagedTile& tile, int64_t page)
      : keys(static_cast<const T*>(tile.keys) + page * tile.page_stride),
        values(static_cast<const T*>(tile.values) + page * tile.page_stride) {
    if (tile.key_scales == nullptr) return;
    const int64_t first = page * (tile.page_stride / tile.head_dim);
    scales = {tile.key_scales + first, tile.value_scales + first};
  }

  const T* keys;    // [kPageKeys, head_dim]
  const T* values;  // likewise
  PageScales scales;
};

// Chains of the sum over a page's weights.
static constexpr int kChains = 4;
static_assert(kPageKeys % kChains == 0);

// The factor of queries. Scores are kept times log2(e); with a soft cap that is left to cap_scores.
static inline float query_factor(const PagedTile& tile) {
  return tile.soft_cap > 0 ? tile.scale / tile.soft_cap : tile.scale * kLog2E;
}

// Of one vector of rows, over keys from position `first` on: the soft cap, ALiBi's term, and
// -infinity for keys that a row does not see.
static inline void adjust_paged_scores(const PagedTile& tile, const PagedScratch& scratch, int row,
                                       int64_t first, int count, bool all_visible, float* scores) {
  const IntVec positions = load_int(scratch.positions + row);
  const Vec slopes = load(scratch.slopes + row);
  const Vec cap = splat(tile.soft_cap * kLog2E);
  const auto left = static_cast<int32_t>(tile.left < kMostPositions ? tile.left : kMostPositions);
  for (int i = 0; i < count; ++i, scores += kGroup) {
    Vec score = load(scores);
    if (tile.soft_cap > 0) score = tanh(score) * cap;
    const IntVec distance = positions - static_cast<int32_t>(first + i);
    if (tile.slopes != nullptr) {
      score = fma(-slopes, __builtin_convertvector(distance, Vec), score);
    }
    if (!all_visible) {
      const IntVec visible = (distance >= 0) & (distance <= left);
      score = visible ? score : splat(-kInfinity);
    }
    store(scores, score);
  }
}

// Turns the scores of one vector of rows into exp(score - maximum), and returns the factor that
// earlier sums take. `count` is a multiple of kChains, as is the first key's place in its page.
static inline Vec soften_page(float* scores, int count, float* maximum, float* denominator) {
  const Vec before = load(maximum);
  Vec greatest[kChains] = {before, before, before, before};
  for (int key = 0; key < count; key += kChains) {
    for (int i = 0; i < kChains; ++i) {
      greatest[i] = max(load(scores + (key + i) * kGroup), greatest[i]);
    }
  }
  const Vec now = max(max(greatest[0], greatest[1]), max(greatest[2], greatest[3]));
  // No visible key so far: any finite number serves, every weight is 0.
  const Vec base = now == splat(-kInfinity) ? Vec{} : now;
  Vec sums[kChains] = {};
  for (int key = 0; key < count; key += kChains) {
    for (int i = 0; i < kChains; ++i) {
      float* score = scores + (key + i) * kGroup;
      const Vec weight = exp2(load(score) - base);
      store(score, weight);
      sums[i] += weight;
    }
  }
  const Vec factor = exp2(before - base);
  store(maximum, now);
  store(denominator, fma(load(denominator), factor, (sums[0] + sums[1]) + (sums[2] + sums[3])));
  return factor;
}

// Multiplies the scores or weights [count, kGroup] of each key by the key's scale, where keys or
// values are numbers of e4m3.
template <int vectors>
static inline void scale_keys(float* scores, const float* scales, int count) {
  for (int i = 0; i < count; ++i, scores += kGroup) {
    const Vec scale = splat(scales[i] * kFloat8Unit);
    for (int v = 0; v < vectors; ++v) {
      store(scores + v * kWidth, load(scores + v * kWidth) * scale);
    }
  }
}

// Rows from `row` on over one page of keys, from position `first_key` on.
template <int vectors>
static void attend_page(const PagedTile& tile, const PagedScratch& scratch, int row,
                        int64_t first_key, Rows keys, Rows values, const PageScales& scales,
                        const SoftmaxState& state) {
  // Positions rise with rows. Keys [begin, end) of the page are those that any of the rows sees.
  const int64_t lowest = scratch.positions[row];
  const int64_t highest = scratch.positions[row + vectors * kWidth - 1];
  const int begin = clamp(lowest - tile.left - first_key, kPageKeys) / kChains * kChains;
  const int end = clamp(highest + 1 - first_key, kPageKeys);
  if (begin >= end) return;
  keys.first += begin * keys.stride;
  values.first += begin * values.stride;
  const int count = end - begin;
  multiply_keys<vectors>(scratch.queries + row, keys, count, tile.head_dim, scratch.scores);
  if (scales.keys != nullptr) scale_keys<vectors>(scratch.scores, scales.keys + begin, count);
  int padded = count;
  for (; padded % kChains != 0; ++padded) {
    for (int v = 0; v < vectors; ++v) {
      store(scratch.scores + padded * kGroup + v * kWidth, splat(-kInfinity));
    }
  }
  const bool all_visible =
      lowest >= first_key + end - 1 && highest - tile.left <= first_key + begin;
  Vec factor[vectors];
  for (int v = 0; v < vectors; ++v) {
    float* const scores = scratch.scores + v * kWidth;
    const int at = row + v * kWidth;
    if (!all_visible || tile.soft_cap > 0 || tile.slopes != nullptr) {
      adjust_paged_scores(tile, scratch, at, first_key + begin, count, all_visible, scores);
    }
    factor[v] = soften_page(scores, padded, state.maximum + at, state.denominator + at);
  }
  if (scales.values != nullptr) scale_keys<vectors>(scratch.scores, scales.values + begin, count);
  multiply_values<vectors>(scratch.scores, values, count, tile.head_dim, factor, state.sums + row);
}

// What the maxima of earlier chunks and of the next one make of their sums, for one vector of rows.
struct ChunkFactors {
  ChunkFactors(const SoftmaxState& into, const SoftmaxState& next, int row) {
    const Vec before = load(into.maximum + row);
    const Vec greatest = load(next.maximum + row);
    now = max(greatest, before);
    const Vec base = now == splat(-kInfinity) ? Vec{} : now;
    factor = exp2(before - base);
    next_factor = exp2(greatest - base);
    empty = load(next.denominator + row) == Vec{};
  }
  void merge(float* to, const float* from) const {
    const Vec old = load(to);
    const Vec merged = fma(load(from), next_factor, old * factor);
    store(to, empty ? old : merged);
  }

  Vec now, factor, next_factor;
  IntVec empty;  // where the next chunk changes nothing
};

// Notes the position and the slope of a row of the tile, and returns the row of q. Lanes without a
// row repeat the last one.
template <class T>
static inline const T* place_row(const PagedTile& tile, const PagedScratch& scratch, int row) {
  const int64_t at = tile.first_row + (row < tile.rows ? row : tile.rows - 1);
  const int64_t query = at / tile.group, head = at % tile.group;
  scratch.positions[row] = static_cast<int32_t>(tile.first_position + query);
  scratch.slopes[row] = tile.slopes != nullptr ? tile.slopes[head] * kLog2E : 0;
  return static_cast<const T*>(tile.q) + query * tile.q_stride + head * tile.head_dim;
}

#include "cpu/paged_attention_by_keys_kernel.h"

// No key so far.
static void clear_state(const SoftmaxState& state, int rows, int head_dim) {
  if (rows <= kSkinnyPagedRows) return clear_skinny_rows(state, rows, head_dim);
  for (int row = 0; row < rows; row += kWidth) {
    for (int c = 0; c < head_dim; ++c) store(state.sums + c * state.stride + row, Vec{});
    store(state.maximum + row, splat(-kInfinity));
    store(state.denominator + row, Vec{});
  }
}

#include "cpu/paged_attention_amx_kernel.h"

template <class T>
static void pack_paged_queries(const PagedTile& tile) {
#if defined(__AMX_BF16__)
  if (pages_suit_amx(tile)) return pack_paged_pairs(tile);
#endif
  if (tile.rows <= kSkinnyPagedRows) return pack_skinny_queries<T>(tile);
  const PagedScratch scratch(tile.scratch, tile.head_dim);
  const Vec factor = splat(query_factor(tile));
  for (int row = 0; row < tile.rows; row += kWidth) {
    const T* from[kWidth];
    for (int i = 0; i < kWidth; ++i) from[i] = place_row<T>(tile, scratch, row + i);
    for (int c = 0; c < tile.head_dim; c += kWidth) {
      Vec lanes[kWidth];
      for (int i = 0; i < kWidth; ++i) lanes[i] = load(from[i] + c) * factor;
      transpose(lanes);
      for (int i = 0; i < kWidth; ++i)
        store(scratch.queries + (c + i) * kQueryTile + row, lanes[i]);
    }
  }
}

// The tile's rows over the keys of one chunk; `state`, with rows kQueryTile apart, is written anew.
template <class T>
static void attend_chunk(const PagedTile& tile, int64_t chunk, const SoftmaxState& state) {
  const PagedScratch scratch(tile.scratch, tile.head_dim);
  const int64_t lowest = scratch.positions[0] - tile.left;
  const int64_t highest = int64_t{scratch.positions[tile.rows - 1]} + 1;
  const int64_t first = chunk * kChunkKeys;
  const int64_t end = highest < first + kChunkKeys ? highest : first + kChunkKeys;
  const int64_t begin = lowest > first ? lowest / kPageKeys * kPageKeys : first;
#if defined(__AMX_BF16__)
  if (pages_suit_amx(tile)) {
    const auto attend = tile.rows <= kSkinnyPagedRows ? attend_skinny_rows_amx : attend_rows_amx;
    return attend(tile, begin, end, scratch, state);
  }
#endif
  if (tile.rows <= kSkinnyPagedRows) return attend_skinny_rows<T>(tile, begin, end, scratch, state);
  const int lanes = round_up(tile.rows, kWidth);
  clear_state(state, tile.rows, tile.head_dim);
  for (int64_t key = begin; key < end; key += kPageKeys) {
    const int64_t page = tile.table[key / kPageKeys];
    const int count = clamp(end - key, kPageKeys);
    const PageOf<T> of(tile, page);
    const Rows keys = as_floats(of.keys, tile.head_dim, count, tile.head_dim, scratch.keys);
    const Rows values = as_floats(of.values, tile.head_dim, count, tile.head_dim, scratch.values);
    for (int row = 0; row < lanes; row += kGroup) {
      if (row + kWidth < lanes) {
        attend_page<2>(tile, scratch, row, key, keys, values, of.scales, state);
      } else {
        attend_page<1>(tile, scratch, row, key, keys, values, of.scales, state);
      }
    }
  }
}

// What keys of earlier chunks and those of the next one give together.
static void merge_chunks(const SoftmaxState& into, const SoftmaxState& next, int rows,
                         int head_dim) {
  for (int row = 0; row < rows; row += kWidth) {
    const ChunkFactors factors(into, next, row);
    if (rows <= kSkinnyPagedRows) {
      merge_skinny_rows(into, next, row, rows, head_dim, factors);
    } else {
      for (int c = 0; c < head_dim; ++c) {
        factors.merge(into.sums + c * into.stride + row, next.sums + c * next.stride + row);
      }
    }
    factors.merge(into.denominator + row, next.denominator + row);
    store(into.maximum + row, factors.now);
  }
}

// Divides, transposes back and writes the tile's rows; a row that sees no key gives zeros.
template <class T>
static void write_paged_rows(const PagedTile& tile, const SoftmaxState& state) {
  if (tile.rows <= kSkinnyPagedRows) return write_skinny_rows<T>(tile, state);
  for (int row = 0; row < tile.rows; row += kWidth) {
    const Vec denominator = load(state.denominator + row);
    const Vec inverse = splat(1.0f) / denominator;
    const int count = clamp(tile.rows - row, kWidth);
    for (int c = 0; c < tile.head_dim; c += kWidth) {
      Vec rows[kWidth];
      for (int i = 0; i < kWidth; ++i) {
        const Vec sum = load(state.sums + (c + i) * state.stride + row);
        rows[i] = denominator == Vec{} ? Vec{} : sum * inverse + Vec{};  // no -0
      }
      transpose(rows);
      for (int i = 0; i < count; ++i) {
        const int64_t at = tile.first_row + row + i;
        T* out = static_cast<T*>(tile.out) + at / tile.group * tile.out_stride +
                 at % tile.group * tile.head_dim;
        store(out + c, rows[i]);
      }
    }
  }
}
