// Attention by AMX, in bfloat16 and where float32 may be rounded to it: the same tiles and the same
// softmax as attention_kernel.h, with both products by TDPBF16PS (Intel's instruction set
// reference), which adds to 16 x 16 float32 sums the product of 16 x 32 and 32 x 16 bfloat16
// numbers, the second factor's rows in pairs. Weights are rounded to bfloat16 for the second
// product, not for their sum. Included by kernels_body.h.

#if defined(__AMX_BF16__)

static constexpr int kTileSide = 16;   // rows of a tile register, and float32 columns
static constexpr int kTileDepth = 32;  // bfloat16 columns

// The parts of a tile's scratch in bfloat16.
struct AmxScratch {
  explicit AmxScratch(const TileScratch& scratch)
      : queries(reinterpret_cast<int32_t*>(scratch.queries)),
        keys(reinterpret_cast<bfloat16*>(scratch.values)),
        values(reinterpret_cast<bfloat16*>(scratch.keys)),
        weights(reinterpret_cast<int32_t*>(scratch.of_queries)) {}

  int32_t* queries;  // [d / 2, kQueryTile] pairs of columns
  bfloat16* keys;    // [kKeyTile, d] where they cannot be read in place
  bfloat16* values;  // [d, kKeyTile], zeros after the last key
  int32_t* weights;  // [kKeyTile / 2, kGroup] pairs of keys
};

// The instructions on tiles do not say that they read memory.
static inline void memory_is_written() { asm volatile("" ::: "memory"); }

static inline void configure_tiles() {
  alignas(64) uint8_t config[64] = {1};  // palette
  for (int i = 0; i < 8; ++i) {
    config[16 + 2 * i] = 64;  // bytes of a row
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

static inline IntVec load_halves(const bfloat16* from) {
  HalfVec half;
  __builtin_memcpy(&half, from, sizeof(half));
  return __builtin_convertvector(half, IntVec);
}

static inline IntVec load_halves(const float* from) {
  HalfVec half;
  store(reinterpret_cast<bfloat16*>(&half), load(from));
  return __builtin_convertvector(half, IntVec);
}

static inline void store_pairs(void* to, Vec value) { __builtin_memcpy(to, &value, sizeof(value)); }

// queries[head_dim / 2, kQueryTile] = rows of q as pairs, transposed; zeros where there is no row.
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

// values[head_dim, kKeyTile] = rows of v transposed, up to the next multiple of kTileDepth rows.
template <class T>
static inline void transpose_values(const T* v, int64_t stride, int rows, int head_dim,
                                    bfloat16* values) {
  const auto row_at = [&](int row, int c) {
    return row < rows ? load_halves(v + row * stride + c) : IntVec{};
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

// The sums in tile registers 0 and, of a second vector of queries, 1: rows of `a` times `pairs`.
template <int vectors>
static inline void add_product(const bfloat16* a, int64_t a_stride, const int32_t* pairs,
                               int pairs_stride) {
  _tile_loadd(4, a, a_stride * 2);
  _tile_loadd(6, pairs, pairs_stride * 4);
  _tile_dpbf16ps(0, 4, 6);
  if constexpr (vectors == 2) {
    _tile_loadd(7, pairs + kWidth, pairs_stride * 4);
    _tile_dpbf16ps(1, 4, 7);
  }
}

template <int vectors>
static inline void store_sums(float* to, int stride) {
  _tile_stored(0, to, stride * 4);
  if constexpr (vectors == 2) _tile_stored(1, to + kWidth, stride * 4);
}

// scores[rows, kGroup] = keys times queries. The last block of rows may overlap the one before.
template <int vectors>
static inline void multiply_keys_amx(const int32_t* queries, const bfloat16* keys, int64_t stride,
                                     int rows, int head_dim, float* scores) {
  for (int done = 0; done < rows; done += kTileSide) {
    const int row = done + kTileSide <= rows || rows < kTileSide ? done : rows - kTileSide;
    _tile_zero(0);
    if constexpr (vectors == 2) _tile_zero(1);
    for (int c = 0; c < head_dim; c += kTileDepth) {
      add_product<vectors>(keys + row * stride + c, stride, queries + c / 2 * kQueryTile,
                           kQueryTile);
    }
    store_sums<vectors>(scores + row * kGroup, kGroup);
  }
}

// weights[rows / 2, kGroup] = pairs of keys, up to the next multiple of kTileDepth rows.
template <int vectors>
static inline void pack_weight_pairs(const float* scores, int rows, int32_t* weights) {
  __m512i in_turn;
  uint16_t order[2 * kWidth];
  for (int i = 0; i < kWidth; ++i) {
    order[2 * i] = static_cast<uint16_t>(i);
    order[2 * i + 1] = static_cast<uint16_t>(kWidth + i);
  }
  __builtin_memcpy(&in_turn, order, sizeof(order));
  for (int row = 0; row < (rows + kTileDepth - 1) / kTileDepth * kTileDepth; row += 2) {
    for (int v = 0; v < vectors; ++v) {
      const float* score = scores + row * kGroup + v * kWidth;
      const Vec first = row < rows ? load(score) : Vec{};
      const Vec second = row + 1 < rows ? load(score + kGroup) : Vec{};
      const auto both = (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
      const __m512i pairs = _mm512_maskz_permutexvar_epi16(~__mmask32{}, in_turn, both);
      __builtin_memcpy(weights + row / 2 * kGroup + v * kWidth, &pairs, sizeof(pairs));
    }
  }
}

// sums[head_dim, queries] = factor sums + values weights
template <int vectors>
static inline void multiply_values_amx(const int32_t* weights, const bfloat16* values, int rows,
                                       int head_dim, const Vec* factor, float* sums) {
  for (int c = 0; c < head_dim; ++c) {
    for (int v = 0; v < vectors; ++v) {
      float* sum = sums + c * kQueryTile + v * kWidth;
      store(sum, load(sum) * factor[v]);
    }
  }
  memory_is_written();
  for (int c = 0; c < head_dim; c += kTileSide) {
    float* sum = sums + c * kQueryTile;
    _tile_loadd(0, sum, kQueryTile * 4);
    if constexpr (vectors == 2) _tile_loadd(1, sum + kWidth, kQueryTile * 4);
    for (int row = 0; row < rows; row += kTileDepth) {
      add_product<vectors>(values + c * kKeyTile + row, kKeyTile, weights + row / 2 * kGroup,
                           kGroup);
    }
    store_sums<vectors>(sum, kQueryTile);
  }
}

// A group of queries, from `query` on, over one tile of keys that all of them see.
template <int vectors>
static void attend_amx(const AttentionTile& task, TileScratch& scratch, const AmxScratch& amx,
                       int query, const bfloat16* keys, int64_t stride, int rows) {
  multiply_keys_amx<vectors>(amx.queries + query, keys, stride, rows, task.head_dim,
                             scratch.scores);
  const Vec scale = splat(task.scale * kLog2E);
  Vec factor[vectors];
  for (int v = 0; v < vectors; ++v) {
    float* scores = scratch.scores + v * kWidth;
    for (int row = 0; row < rows; ++row) {
      store(scores + row * kGroup, load(scores + row * kGroup) * scale);
    }
    const int at = query + v * kWidth;
    factor[v] = soften(scores, rows, scratch.maximum + at, scratch.denominator + at);
  }
  pack_weight_pairs<vectors>(scratch.scores, rows, amx.weights);
  multiply_values_amx<vectors>(amx.weights, amx.values, rows, task.head_dim, factor,
                               scratch.sums + query);
}

// Every query sees every key, and nothing is added to scores: so for all sequences of a layer.
static inline bool suits_amx(const AttentionTile& task) {
  return task.head_dim % kTileDepth == 0 && task.left >= kUnlimited && task.right >= kUnlimited &&
         task.slope == nullptr && task.table == nullptr && task.slots == nullptr;
}

// to[up to a multiple of kTileSide, head_dim] = rows; zeros after the last.
template <class T>
static inline void copy_keys(const T* k, int64_t stride, int rows, int head_dim, bfloat16* to) {
  for (int row = 0; row < (rows + kTileSide - 1) / kTileSide * kTileSide; ++row) {
    for (int c = 0; c < head_dim; c += kTileDepth) {
      store_pairs(to + row * head_dim + c, row < rows ? load_pairs(k + row * stride + c) : Vec{});
    }
  }
}

template <class T>
static void attention_amx(const AttentionTile& task) {
  TileScratch scratch(task.scratch, task.head_dim);
  const AmxScratch amx(scratch);
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
        attend_amx<2>(task, scratch, amx, query, keys, stride, count);
      } else {
        attend_amx<1>(task, scratch, amx, query, keys, stride, count);
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
