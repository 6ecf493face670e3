// Attention over pages in bfloat16 by AMX. Included by paged_attention_kernel.h.
//
// Both products use TDPBF16PS, by the functions of attention_amx_kernel.h: of the queries as they
// are (scores are scaled afterwards), and of weights that are rounded to bfloat16 (but not for
// their sum). It adds 32 columns, or 32 keys, at a time, and an element of its result depends on
// the row and the column that it multiplies alone, whichever of them is the first factor. So many
// rows, whose lanes are rows, and few, whose lanes are keys, have the same bits. Keys are taken in
// blocks of 32 of their page. Those of a block that a row does not see have the weight 0, and the
// values of those that no row of the tile sees count as zeros, because they may be any bytes.
//
// Of the scratch, queries are pairs [head_dim / 2, kQueryTile]. Many rows have the transposed
// values [head_dim, kKeyTile] in place of values, and pairs of weights in place of keys; few have
// pairs of values, and scores by key and weights.

#if defined(__AMX_BF16__)

static inline bool pages_suit_amx(const PagedTile& tile) {
  return tile.bfloat16 && tile.head_dim % kTileDepth == 0;
}

static inline int32_t* paged_pairs(const PagedScratch& scratch) {
  return reinterpret_cast<int32_t*>(scratch.queries);
}

// queries[head_dim / 2, kQueryTile] = the rows of q, transposed as pairs of columns. Lanes without
// a row repeat the last one.
static void pack_paged_pairs(const PagedTile& tile) {
  const PagedScratch scratch(tile.scratch, tile.head_dim);
  for (int row = 0; row < tile.rows; row += kTileSide) {
    const bfloat16* from[kTileSide];
    for (int i = 0; i < kTileSide; ++i) from[i] = place_row<bfloat16>(tile, scratch, row + i);
    for (int c = 0; c < tile.head_dim; c += kTileDepth) {
      Vec lanes[kTileSide];
      for (int i = 0; i < kTileSide; ++i) lanes[i] = load_pairs(from[i] + c);
      transpose(lanes);
      for (int i = 0; i < kTileSide; ++i) {
        store_pairs(paged_pairs(scratch) + (c / 2 + i) * kQueryTile + row, lanes[i]);
      }
    }
  }
}

// The keys of a page, in blocks of 32, that any row from position `lowest` to `highest` sees.
struct VisibleKeys {
  VisibleKeys(const PagedTile& tile, int64_t lowest, int64_t highest, int64_t first_key)
      : begin(clamp(lowest - tile.left - first_key, kPageKeys) / kTileDepth * kTileDepth),
        end(round_up(clamp(highest + 1 - first_key, kPageKeys), kTileDepth)),
        all(lowest >= first_key + end - 1 && highest - tile.left <= first_key + begin) {}
  int begin, end;
  bool all;  // whether every row sees every one of them
};

static inline bool adjusts_scores(const PagedTile& tile) {
  return tile.soft_cap > 0 || tile.slopes != nullptr;
}

// As soften_page, of all vectors of a group of rows at once: weights[count / 2, kGroup] are pairs
// of keys, and `count` is a multiple of 32. Scores are multiplied by `scale`.
template <int vectors>
static inline void soften_page_to_pairs(const float* scores, int count, float scale, float* maximum,
                                        float* denominator, int32_t* weights, Vec* factor) {
  const auto score = [&](int key, int v) {
    return load(scores + key * kGroup + v * kWidth) * splat(scale);
  };
  Vec base[vectors];
  for (int v = 0; v < vectors; ++v) {
    const Vec before = load(maximum + v * kWidth);
    Vec greatest[kChains] = {before, before, before, before};
    for (int key = 0; key < count; key += kChains) {
      for (int i = 0; i < kChains; ++i) greatest[i] = max(score(key + i, v), greatest[i]);
    }
    const Vec now = max(max(greatest[0], greatest[1]), max(greatest[2], greatest[3]));
    base[v] = now == splat(-kInfinity) ? Vec{} : now;
    factor[v] = exp2_of_negative(before - base[v]);
    store(maximum + v * kWidth, now);
  }
  const __m512i in_turn = lanes_in_turn();
  Vec sums[vectors][kChains] = {};
  for (int key = 0; key < count; key += 2) {
    for (int v = 0; v < vectors; ++v) {
      Vec weight[2];
      for (int i = 0; i < 2; ++i) {
        weight[i] = exp2_of_negative(score(key + i, v) - base[v]);
        sums[v][(key + i) % kChains] += weight[i];
      }
      const auto both = (__m512i)_mm512_cvtne2ps_pbh((__m512)weight[1], (__m512)weight[0]);
      const __m512i pairs = _mm512_maskz_permutexvar_epi16(~__mmask32{}, in_turn, both);
      __builtin_memcpy(weights + key / 2 * kGroup + v * kWidth, &pairs, sizeof(pairs));
    }
  }
  for (int v = 0; v < vectors; ++v) {
    float* const sum = denominator + v * kWidth;
    store(sum, fma(load(sum), factor[v], (sums[v][0] + sums[v][1]) + (sums[v][2] + sums[v][3])));
  }
}

// As attend_page; `values` is [head_dim, kKeyTile], transposed.
template <int vectors>
static void attend_page_amx(const PagedTile& tile, const PagedScratch& scratch, int row,
                            int64_t first_key, const bfloat16* keys, const bfloat16* values,
                            const SoftmaxState& state) {
  const VisibleKeys visible(tile, scratch.positions[row],
                            scratch.positions[row + vectors * kWidth - 1], first_key);
  const int count = visible.end - visible.begin;
  if (count <= 0) return;
  multiply_keys_amx<vectors>(paged_pairs(scratch) + row, keys + visible.begin * tile.head_dim,
                             tile.head_dim, count, tile.head_dim, scratch.scores);
  memory_is_written();
  float scale = query_factor(tile);
  if (!visible.all || adjusts_scores(tile)) {
    for (int v = 0; v < vectors; ++v) {
      float* const scores = scratch.scores + v * kWidth;
      for (int key = 0; key < count; ++key) {
        store(scores + key * kGroup, load(scores + key * kGroup) * splat(scale));
      }
      adjust_paged_scores(tile, scratch, row + v * kWidth, first_key + visible.begin, count,
                          visible.all, scores);
    }
    scale = 1;
  }
  auto* const weights = reinterpret_cast<int32_t*>(scratch.keys);
  Vec factor[vectors];
  soften_page_to_pairs<vectors>(scratch.scores, count, scale, state.maximum + row,
                                state.denominator + row, weights, factor);
  multiply_values_amx<vectors>(weights, values + visible.begin, count, tile.head_dim, false, factor,
                               state.sums + row);
}

static void attend_rows_amx(const PagedTile& tile, int64_t begin, int64_t end,
                            const PagedScratch& scratch, const SoftmaxState& state) {
  clear_state(state, tile.rows, tile.head_dim);
  const int lanes = round_up(tile.rows, kWidth);
  auto* const values = reinterpret_cast<bfloat16*>(scratch.values);
  configure_tiles();
  for (int64_t key = begin; key < end; key += kPageKeys) {
    const PageOf<bfloat16> page(tile, tile.table[key / kPageKeys]);
    transpose_values(page.values, tile.head_dim, clamp(end - key, kPageKeys), tile.head_dim, values,
                     clamp(scratch.positions[0] - tile.left - key, kPageKeys));
    memory_is_written();
    for (int row = 0; row < lanes; row += kGroup) {
      if (row + kWidth < lanes) {
        attend_page_amx<2>(tile, scratch, row, key, page.keys, values, state);
      } else {
        attend_page_amx<1>(tile, scratch, row, key, page.keys, values, state);
      }
    }
  }
  _tile_release();
}

// Few rows. Tiles 0 and 1 hold scores [16 keys, rows], 3 pairs of queries, 4 and 5 sums [rows, 16
// columns], 6 weights [rows, 32 keys], and 2 and 7 keys or pairs of values.
static inline void configure_skinny_tiles(int rows) {
  alignas(64) uint8_t config[64] = {1};  // palette
  for (int tile = 0; tile < 8; ++tile) {
    const bool rows_across = tile == 0 || tile == 1 || tile == 3;
    const bool rows_down = tile >= 4 && tile <= 6;
    config[16 + 2 * tile] = static_cast<uint8_t>(rows_across ? 4 * rows : 64);
    config[48 + tile] = static_cast<uint8_t>(rows_down ? rows : kTileSide);
  }
  memory_is_written();
  _tile_loadconfig(config);
}

// scores[rows, kPageKeys] = queries * keys, for keys [begin, end) of the page
static inline void multiply_skinny_keys(const int32_t* queries, const bfloat16* keys, int begin,
                                        int end, int rows, int head_dim, float* by_key,
                                        float* scores) {
  const int64_t stride = head_dim * int64_t{sizeof(bfloat16)};
  for (int key = begin; key < end; key += 2 * kTileSide) {
    float* const to = by_key + key * kWidth;
    const bfloat16* from = keys + int64_t{key} * head_dim;
    _tile_zero(0);
    _tile_zero(1);
    for (int c = 0; c < head_dim; c += kTileDepth) {
      _tile_loadd(3, queries + c / 2 * kQueryTile, kQueryTile * 4);
      _tile_loadd(2, from + c, stride);
      _tile_loadd(7, from + kTileSide * head_dim + c, stride);
      _tile_dpbf16ps(0, 2, 3);
      _tile_dpbf16ps(1, 7, 3);
    }
    _tile_stored(0, to, kWidth * 4);
    _tile_stored(1, to + kTileSide * kWidth, kWidth * 4);
  }
  memory_is_written();
  for (int key = begin; key < end; key += kTileSide) {
    Vec lanes[kTileSide];
    for (int i = 0; i < kTileSide; ++i) lanes[i] = load(by_key + (key + i) * kWidth);
    transpose(lanes);
    for (int row = 0; row < rows; ++row) store(scores + row * kPageKeys + key, lanes[row]);
  }
}

// As soften_page_to_pairs, of one row and keys [begin, end), whose weights are not in pairs.
static inline float soften_row_to_bfloat16(float* scores, int begin, int end, float* maximum,
                                           float* denominator, bfloat16* weights) {
  const float before = *maximum;
  Vec greatest = splat(before);
  for (int key = begin; key < end; key += kWidth) greatest = max(load(scores + key), greatest);
  const float now = max_lane(greatest);
  const Vec base = splat(now == -kInfinity ? 0.0f : now);
  using Chains = float __attribute__((vector_size(kChains * sizeof(float))));
  Chains sums = {};
  for (int key = begin; key < end; key += 2 * kWidth) {
    const Vec first = exp2_of_negative(load(scores + key) - base);
    const Vec second = exp2_of_negative(load(scores + key + kWidth) - base);
    const auto both = (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
    __builtin_memcpy(weights + key, &both, sizeof(both));
    Chains parts[2 * kWidth / kChains];
    __builtin_memcpy(parts, &first, sizeof(first));
    __builtin_memcpy(parts + kWidth / kChains, &second, sizeof(second));
    for (const Chains& part : parts) sums += part;
  }
  const Vec factor = exp2_of_negative(splat(before) - base);
  const Vec sum = splat((sums[0] + sums[1]) + (sums[2] + sums[3]));
  *maximum = now;
  *denominator = fma(splat(*denominator), factor, sum)[0];
  return factor[0];
}

// pairs[kPageKeys / 2, head_dim] = the values of keys [begin, end) in pairs of keys, with zeros
// around them up to multiples of 32.
static inline void pair_values(const bfloat16* values, int begin, int end, int head_dim,
                               int32_t* pairs) {
  const int64_t d = head_dim;
  int key = begin / kTileDepth * kTileDepth;
  for (; key < begin; key += 2) {
    for (int c = 0; c < head_dim; c += kTileSide) {
      const IntVec last = key + 1 < begin ? IntVec{} : load_halves(values + (key + 1) * d + c);
      store_pairs(pairs + key / 2 * d + c, (Vec)(last << 16));
    }
  }
  for (; key + 2 <= end; key += 2) {
    const bfloat16* from = values + key * d;
    for (int c = 0; c < head_dim; c += kTileSide) {
      store_pairs(pairs + key / 2 * d + c,
                  (Vec)(load_halves(from + c) | load_halves(from + d + c) << 16));
    }
  }
  for (; key < round_up(end, kTileDepth); key += 2) {
    for (int c = 0; c < head_dim; c += kTileSide) {
      const IntVec last = key < end ? load_halves(values + key * d + c) : IntVec{};
      store_pairs(pairs + key / 2 * d + c, (Vec)last);
    }
  }
}

// sums[rows, head_dim] += weights values, for keys [begin, end) of the page
static inline void multiply_skinny_values(const bfloat16* weights, const int32_t* pairs, int begin,
                                          int end, int head_dim, float* sums) {
  const int64_t stride = head_dim * int64_t{sizeof(float)};
  for (int c = 0; c < head_dim; c += 2 * kTileSide) {
    _tile_loadd(4, sums + c, stride);
    _tile_loadd(5, sums + c + kTileSide, stride);
    for (int key = begin; key < end; key += kTileDepth) {
      const int32_t* from = pairs + key / 2 * head_dim + c;
      _tile_loadd(6, weights + key, kPageKeys * 2);
      _tile_loadd(2, from, stride);
      _tile_loadd(7, from + kTileSide, stride);
      _tile_dpbf16ps(4, 6, 2);
      _tile_dpbf16ps(5, 6, 7);
    }
    _tile_stored(4, sums + c, stride);
    _tile_stored(5, sums + c + kTileSide, stride);
  }
  memory_is_written();
}

static void attend_skinny_rows_amx(const PagedTile& tile, int64_t begin, int64_t end,
                                   const PagedScratch& scratch, const SoftmaxState& state) {
  const int d = tile.head_dim, rows = tile.rows;
  clear_skinny_rows(state, rows, d);
  float* const by_key = scratch.keys;
  auto* const weights = reinterpret_cast<bfloat16*>(by_key + kPageKeys * kWidth);
  auto* const pairs = reinterpret_cast<int32_t*>(scratch.values);
  const Vec scale = splat(query_factor(tile));
  configure_skinny_tiles(rows);
  for (int64_t first = begin; first < end; first += kPageKeys) {
    const VisibleKeys visible(tile, scratch.positions[0], scratch.positions[rows - 1], first);
    if (visible.begin >= visible.end) continue;
    const PageOf<bfloat16> page(tile, tile.table[first / kPageKeys]);
    prefetch_rows(page.values, d, clamp(end - first, kPageKeys), d);
    multiply_skinny_keys(paged_pairs(scratch), page.keys, visible.begin, visible.end, rows, d,
                         by_key, scratch.scores);
    pair_values(page.values, clamp(scratch.positions[0] - tile.left - first, kPageKeys),
                clamp(end - first, kPageKeys), d, pairs);
    for (int row = 0; row < rows; ++row) {
      float* scores = scratch.scores + row * kPageKeys;
      for (int key = visible.begin; key < visible.end; key += kWidth) {
        store(scores + key, load(scores + key) * scale);
      }
      if (!visible.all || adjusts_scores(tile)) {
        adjust_scores_of_row(tile, scratch.positions[row], scratch.slopes[row],
                             first + visible.begin, visible.end - visible.begin,
                             scores + visible.begin);
      }
      const float factor =
          soften_row_to_bfloat16(scores, visible.begin, visible.end, state.maximum + row,
                                 state.denominator + row, weights + row * kPageKeys);
      float* const sums = state.sums + row * d;
      for (int c = 0; c < d && factor != 1; c += kWidth) {
        store(sums + c, load(sums + c) * splat(factor));
      }
    }
    memory_is_written();
    multiply_skinny_values(weights, pairs, visible.begin, visible.end, d, state.sums);
  }
  _tile_release();
}

#endif
