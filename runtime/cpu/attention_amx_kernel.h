// Attention by AMX, for bfloat16 and for float32 that may be rounded to it. Tiles and online
// softmax are those of attention_kernel.h; both products use TDPBF16PS (Intel's instruction set
// reference). It multiplies 16 x 32 by 32 x 16 bfloat16 numbers, where the second factor stores its
// rows in pairs, and adds the product to 16 x 16 float32 sums. Softmax weights are rounded to
// bfloat16 for the second product, but not for their sum. Included by kernels_body.h.

#if defined(__AMX_BF16__)

static constexpr int kTileSide = 16;   // rows of a tile register, and float32 columns
static constexpr int kTileDepth = 32;  // bfloat16 columns

// The parts of a tile's scratch that hold bfloat16.
struct AmxScratch {
  explicit AmxScratch(const TileScratch& scratch)
      : queries(reinterpret_cast<int32_t*>(scratch.queries)),
        keys(reinterpret_cast<bfloat16*>(scratch.values)),
        values(reinterpret_cast<bfloat16*>(scratch.keys)),
        weights(reinterpret_cast<int32_t*>(scratch.of_queries)) {}

  int32_t* queries;  // [d / 2, kQueryTile] pairs of columns, one pair in each int32
  bfloat16* keys;    // [kKeyTile, d] copy, if they cannot be read in place
  bfloat16* values;  // [d, kKeyTile] with zeros after the last key
  int32_t* weights;  // [kKeyTile / 2, kGroup] pairs of keys
};

// Tells the compiler to finish all writes to memory, because it does not know that the tile
// instructions read memory.
static inline void memory_is_written() { asm volatile("" ::: "memory"); }

static inline void configure_tiles() {
  alignas(64) uint8_t config[64] = {1};  // palette
  for (int i = 0; i < 8; ++i) {
    config[16 + 2 * i] = 64;  // bytes in a row
    config[48 + i] = kTileSide;
  }
  memory_is_written();
  _tile_loadconfig(config);
}

static inline Vec load_pairs(const bfloat16* from) {
  Vec value;
  __builtin_memcpy(&value, from, sizeof(value));
  return value;
}

static inline Vec load_pairs(const float* from) {
  return (Vec)(__m512i)_mm512_cvtne2ps_pbh((__m512)load(from + kWidth), (__m512)load(from));
}

// Rounded to bfloat16, as numbers of 16 bits.
static inline IntVec load_rounded(const bfloat16* from) { return load_halves(from); }
static inline IntVec load_rounded(const float* from) {
  bfloat16 half[kWidth];
  store(half, load(from));
  return load_halves(half);
}

static inline void store_pairs(void* to, Vec value) { __builtin_memcpy(to, &value, sizeof(value)); }

// queries[head_dim / 2, kQueryTile] = the rows of q, transposed as pairs of columns; zeros where
// there is no row.
template <class T>
static inline void pack_query_pairs(const AttentionTile& task, int32_t* queries) {
  const auto* q = static_cast<const T*>(task.q);
  for (int row = 0; row < task.queries; row += kTileSide) {
    for (int c = 0; c < task.head_dim; c += kTileDepth) {
      Vec lanes[kTileSide];
      for (int i = 0; i < kTileSide; ++i) {
        lanes[i] = row + i < task.queries ? load_pairs(q + (row + i) * task.q_stride + c) : Vec{};
      }
      transpose(lanes);
      for (int i = 0; i < kTileSide; ++i) {
        store_pairs(queries + (c / 2 + i) * kQueryTile + row, lanes[i]);
      }
    }
  }
}

// values[head_dim, kKeyTile] = the rows of v, transposed; zeros from the last row to the next
// multiple of kTileDepth rows, and in those before `first`.
template <class T>
static inline void transpose_values(const T* v, int64_t stride, int rows, int head_dim,
                                    bfloat16* values, int first = 0) {
  const auto row_at = [&](int row, int c) {
    return row >= first && row < rows ? load_rounded(v + row * stride + c) : IntVec{};
  };
  for (int row = 0; row < rows; row += kTileDepth) {
    for (int c = 0; c < head_dim; c += kTileSide) {
      Vec lanes[kTileSide];
      for (int i = 0; i < kTileSide; ++i) {
        lanes[i] = (Vec)(row_at(row + 2 * i, c) | row_at(row + 2 * i + 1, c) << 16);
      }
      transpose(lanes);
      for (int i = 0; i < kTileSide; ++i) {
        store_pairs(values + (c + i) * kKeyTile + row, lanes[i]);
      }
    }
  }
}

// The use of tile registers: 0 to 3 hold the sums [block of rows][vector of queries], 4 and 5 the
// blocks of rows, 6 the pairs that multiply them, and 7 the pairs of a second vector.
template <int vectors>
static inline void load_pair_tiles(const int32_t* pairs, int stride) {
  _tile_loadd(6, pairs, stride * 4);
  if constexpr (vectors == 2) _tile_loadd(7, pairs + kWidth, stride * 4);
}

template <int vectors, int blocks>
static inline void clear_sum_tiles() {
  _tile_zero(0);
  if constexpr (vectors == 2) _tile_zero(1);
  if constexpr (blocks == 2) _tile_zero(2);
  if constexpr (blocks == 2 && vectors == 2) _tile_zero(3);
}

template <int vectors, int blocks>
static inline void load_sum_tiles(const float* first, const float* second, int stride) {
  _tile_loadd(0, first, stride * 4);
  if constexpr (vectors == 2) _tile_loadd(1, first + kWidth, stride * 4);
  if constexpr (blocks == 2) _tile_loadd(2, second, stride * 4);
  if constexpr (blocks == 2 && vectors == 2) _tile_loadd(3, second + kWidth, stride * 4);
}

template <int vectors, int blocks>
static inline void store_sum_tiles(float* first, float* second, int stride) {
  _tile_stored(0, first, stride * 4);
  if constexpr (vectors == 2) _tile_stored(1, first + kWidth, stride * 4);
  if constexpr (blocks == 2) _tile_stored(2, second, stride * 4);
  if constexpr (blocks == 2 && vectors == 2) _tile_stored(3, second + kWidth, stride * 4);
}

template <int vectors, int blocks>
static inline void add_products(const bfloat16* first, const bfloat16* second, int64_t stride) {
  _tile_loadd(4, first, stride * 2);
  if constexpr (blocks == 2) _tile_loadd(5, second, stride * 2);
  _tile_dpbf16ps(0, 4, 6);
  if constexpr (vectors == 2) _tile_dpbf16ps(1, 4, 7);
  if constexpr (blocks == 2) _tile_dpbf16ps(2, 5, 6);
  if constexpr (blocks == 2 && vectors == 2) _tile_dpbf16ps(3, 5, 7);
}

// Computes the scores of one or two blocks of kTileSide keys.
template <int vectors, int blocks>
static inline void multiply_key_blocks(const int32_t* queries, bool queries_stay,
                                       const bfloat16* keys, int64_t stride, int first, int second,
                                       int head_dim, float* scores) {
  clear_sum_tiles<vectors, blocks>();
  for (int c = 0; c < head_dim; c += kTileDepth) {
    if (!queries_stay) load_pair_tiles<vectors>(queries + c / 2 * kQueryTile, kQueryTile);
    add_products<vectors, blocks>(keys + first * stride + c, keys + second * stride + c, stride);
  }
  store_sum_tiles<vectors, blocks>(scores + first * kGroup, scores + second * kGroup, kGroup);
}

// scores[rows, kGroup] = keys times queries. The last block of rows may overlap the one before,
// which computes the same scores again.
template <int vectors>
static inline void multiply_keys_amx(const int32_t* queries, const bfloat16* keys, int64_t stride,
                                     int rows, int head_dim, float* scores) {
  const bool queries_stay = head_dim == kTileDepth;  // they stay in their registers
  if (queries_stay) load_pair_tiles<vectors>(queries, kQueryTile);
  const int last = rows < kTileSide ? 0 : rows - kTileSide;
  for (int row = 0; row - kTileSide < last; row += 2 * kTileSide) {
    const int first = row < last ? row : last;
    const int second = row + kTileSide < last ? row + kTileSide : last;
    if (first == last) {
      multiply_key_blocks<vectors, 1>(queries, queries_stay, keys, stride, first, first, head_dim,
                                      scores);
    } else {
      multiply_key_blocks<vectors, 2>(queries, queries_stay, keys, stride, first, second, head_dim,
                                      scores);
    }
  }
}

// 2^x for x <= 0, with an absolute error below 1.2e-7; NaN for NaN. It works as exp2 does, but its
// polynomial has one degree less and it scales in one instruction.
static inline Vec exp2_of_negative(Vec x) {
  const Vec magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  x = max(splat(-160.0f), x);            // 2^-160 is 0
  const Vec whole = x + magic - magic;
  const Vec r = x - whole;
  Vec p = splat(0.00132647273f);  // minimax fit of 2^r on [-1/2, 1/2], exact at 0
  p = fma(p, r, splat(0.00967151299f));
  p = fma(p, r, splat(0.0555073358f));
  p = fma(p, r, splat(0.240222424f));
  p = fma(p, r, splat(0.693147004f));
  p = fma(p, r, splat(1.0f));
  return (Vec)_mm512_maskz_scalef_ps(0xffff, (__m512)p, (__m512)whole);
}

// The permutation of 16-bit lanes that interleaves the two halves of a vector.
static inline __m512i lanes_in_turn() {
  uint16_t order[2 * kWidth];
  for (int i = 0; i < kWidth; ++i) {
    order[2 * i] = static_cast<uint16_t>(i);
    order[2 * i + 1] = static_cast<uint16_t>(kWidth + i);
  }
  __m512i in_turn;
  __builtin_memcpy(&in_turn, order, sizeof(order));
  return in_turn;
}

// weights[rows / 2, kGroup] = exp(scale scores - maximum) as pairs of keys, with zeros up to the
// next multiple of kTileDepth rows. It works as `soften` does, but for all vectors of a group at
// once, each in two independent chains. For the first keys there are no earlier sums, and `factor`
// is 1.
template <int vectors>
static inline void soften_to_pairs(const float* scores, int rows, float scale, bool first_keys,
                                   float* maximum, float* denominator, int32_t* weights,
                                   Vec* factor) {
  const Vec scales = splat(scale);
  const auto score = [&](int row, int v) {
    return load(scores + row * kGroup + v * kWidth) * scales;
  };
  Vec base[vectors], greatest[vectors][2];
  for (int v = 0; v < vectors; ++v) {
    greatest[v][0] = greatest[v][1] = load(maximum + v * kWidth);
  }
  for (int row = 0; row + 2 <= rows; row += 2) {
    for (int v = 0; v < vectors; ++v) {
      greatest[v][0] = max(score(row, v), greatest[v][0]);
      greatest[v][1] = max(score(row + 1, v), greatest[v][1]);
    }
  }
  for (int v = 0; v < vectors; ++v) greatest[v][0] = max(score(rows - 1, v), greatest[v][0]);
  Vec sums[vectors][2] = {};
  for (int v = 0; v < vectors; ++v) {
    const Vec now = max(greatest[v][0], greatest[v][1]);
    base[v] =
        now == splat(-kInfinity) ? Vec{} : now;  // all scores are -inf: any finite number will do
    factor[v] = first_keys ? splat(1.0f) : exp2_of_negative(load(maximum + v * kWidth) - base[v]);
    store(maximum + v * kWidth, now);
  }
  const __m512i in_turn = lanes_in_turn();
  const auto weight = [&](int row, int v) { return exp2_of_negative(score(row, v) - base[v]); };
  const auto put = [&](int row, int v, Vec first, Vec second) {
    const auto both = (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
    const __m512i pairs = _mm512_maskz_permutexvar_epi16(~__mmask32{}, in_turn, both);
    __builtin_memcpy(weights + row / 2 * kGroup + v * kWidth, &pairs, sizeof(pairs));
  };
  int row = 0;
  for (; row + 2 <= rows; row += 2) {
    for (int v = 0; v < vectors; ++v) {
      const Vec first = weight(row, v);
      const Vec second = weight(row + 1, v);
      sums[v][0] += first;
      sums[v][1] += second;
      put(row, v, first, second);
    }
  }
  if (row < rows) {
    for (int v = 0; v < vectors; ++v) {
      const Vec only = weight(row, v);
      sums[v][0] += only;
      put(row, v, only, Vec{});
    }
    row += 2;
  }
  for (; row % kTileDepth != 0; row += 2) {
    for (int v = 0; v < vectors; ++v) put(row, v, Vec{}, Vec{});
  }
  for (int v = 0; v < vectors; ++v) {
    float* const sum = denominator + v * kWidth;
    const Vec added = sums[v][0] + sums[v][1];
    store(sum, first_keys ? added : fma(load(sum), factor[v], added));
  }
}

// sums[head_dim, queries] = factor sums + values weights. For the first keys the old sums are
// ignored.
template <int vectors>
static inline void multiply_values_amx(const int32_t* weights, const bfloat16* values, int rows,
                                       int head_dim, bool first_keys, const Vec* factor,
                                       float* sums) {
  IntVec changed = {};
  for (int v = 0; v < vectors; ++v) changed |= factor[v] != splat(1.0f);
  const bool any = _mm512_test_epi32_mask((__m512i)changed, (__m512i)changed) != 0;
  for (int c = 0; c < head_dim && any; ++c) {
    for (int v = 0; v < vectors; ++v) {
      float* sum = sums + c * kQueryTile + v * kWidth;
      store(sum, load(sum) * factor[v]);
    }
  }
  memory_is_written();
  for (int c = 0; c < head_dim; c += 2 * kTileSide) {
    float* first = sums + c * kQueryTile;
    float* second = first + kTileSide * kQueryTile;
    if (first_keys) {
      clear_sum_tiles<vectors, 2>();
    } else {
      load_sum_tiles<vectors, 2>(first, second, kQueryTile);
    }
    const bfloat16* from = values + c * kKeyTile;
    for (int row = 0; row < rows; row += kTileDepth) {
      load_pair_tiles<vectors>(weights + row / 2 * kGroup, kGroup);
      add_products<vectors, 2>(from + row, from + kTileSide * kKeyTile + row, kKeyTile);
    }
    store_sum_tiles<vectors, 2>(first, second, kQueryTile);
  }
}

// Processes a group of queries, starting at `query`, with one tile of keys that all of them see.
template <int vectors>
static void attend_amx(const AttentionTile& task, TileScratch& scratch, const AmxScratch& amx,
                       int query, const bfloat16* keys, int64_t stride, int rows, bool first_keys) {
  multiply_keys_amx<vectors>(amx.queries + query, keys, stride, rows, task.head_dim,
                             scratch.scores);
  memory_is_written();
  Vec factor[vectors];
  soften_to_pairs<vectors>(scratch.scores, rows, task.scale * kLog2E, first_keys,
                           scratch.maximum + query, scratch.denominator + query, amx.weights,
                           factor);
  multiply_values_amx<vectors>(amx.weights, amx.values, rows, task.head_dim, first_keys, factor,
                               scratch.sums + query);
}

// Whether every query sees every key and nothing is added to scores. This holds for all sequences
// of a layer or for none.
static inline bool suits_amx(const AttentionTile& task) {
  return task.head_dim % kTileDepth == 0 && task.left >= kUnlimited && task.right >= kUnlimited &&
         task.slope == nullptr && task.table == nullptr && task.slots == nullptr;
}

// to[rows up to a multiple of kTileSide, head_dim] = the rows of k, with zeros after the last.
template <class T>
static inline void copy_keys(const T* k, int64_t stride, int rows, int head_dim, bfloat16* to) {
  for (int row = 0; row < round_up(rows, kTileSide); ++row) {
    for (int c = 0; c < head_dim; c += kTileDepth) {
      store_pairs(to + row * head_dim + c, row < rows ? load_pairs(k + row * stride + c) : Vec{});
    }
  }
}

template <class T>
static void attention_amx(const AttentionTile& task) {
  TileScratch scratch(task.scratch, task.head_dim);
  const AmxScratch amx(scratch);
  prefetch_rows(static_cast<const T*>(task.q), task.q_stride, task.queries, task.head_dim);
  clear_sums(task, scratch);
  pack_query_pairs<T>(task, amx.queries);
  configure_tiles();
  for (int64_t key = 0; key < task.keys; key += kKeyTile) {
    const int count = clamp(task.keys - key, kKeyTile);
    const T* k = static_cast<const T*>(task.k) + key * task.k_stride;
    const T* v = static_cast<const T*>(task.v) + key * task.v_stride;
    prefetch_rows(k, task.k_stride, count, task.head_dim);
    prefetch_rows(v, task.v_stride, count, task.head_dim);
    const bfloat16* keys = amx.keys;
    int64_t stride = task.head_dim;
    if (sizeof(T) == sizeof(bfloat16) && count >= kTileSide) {
      keys = reinterpret_cast<const bfloat16*>(k);
      stride = task.k_stride;
    } else {
      copy_keys(k, task.k_stride, count, task.head_dim, amx.keys);
    }
    transpose_values(v, task.v_stride, count, task.head_dim, amx.values);
    memory_is_written();
    for (int query = 0; query < task.queries; query += kGroup) {
      if (query + kWidth < task.queries) {
        attend_amx<2>(task, scratch, amx, query, keys, stride, count, key == 0);
      } else {
        attend_amx<1>(task, scratch, amx, query, keys, stride, count, key == 0);
      }
    }
  }
  _tile_release();
  write_rows<T>(task, scratch);
}

#endif

static void attention_in_float32(const AttentionTile& task) {
#if defined(__AMX_BF16__)
  if (task.rounded && suits_amx(task)) return attention_amx<float>(task);
#endif
  attention<float>(task);
}

static void attention_in_bfloat16(const AttentionTile& task) {
#if defined(__AMX_BF16__)
  if (suits_amx(task)) return attention_amx<bfloat16>(task);
#endif
  attention<bfloat16>(task);
}
