// Attention over pages for a few rows. Included by paged_attention_kernel.h.
//
// A lane holds one key (of scores) or one column (of values), where attend_page has one row, so
// that a few rows need not fill a vector. Every number is the same expression as there: sums over
// columns and over keys add in the same order, with one rounding for each product and sum.

// Of so few rows, queries and sums lie row by row.

static constexpr int kSkinnyPagedRows = 8;

template <class T>
static void pack_skinny_queries(const PagedTile& tile) {
  const PagedScratch scratch(tile.scratch, tile.head_dim);
  const Vec factor = splat(query_factor(tile));
  for (int row = 0; row < tile.rows; ++row) {
    const T* from = place_row<T>(tile, scratch, row);
    for (int c = 0; c < tile.head_dim; c += kWidth) {
      store(scratch.queries + row * tile.head_dim + c, load(from + c) * factor);
    }
  }
}

static void clear_skinny_rows(const SoftmaxState& state, int rows, int head_dim) {
  for (int row = 0; row < rows; ++row) {
    for (int c = 0; c < head_dim; c += kWidth) store(state.sums + row * head_dim + c, Vec{});
    state.maximum[row] = -kInfinity;
    state.denominator[row] = 0;
  }
}

// `factors`: of the vector of rows that begins with `first`.
static void merge_skinny_rows(const SoftmaxState& into, const SoftmaxState& next, int first,
                              int rows, int head_dim, const ChunkFactors& factors) {
  for (int row = first; row < rows && row < first + kWidth; ++row) {
    ChunkFactors of_row = factors;
    of_row.factor = splat(factors.factor[row - first]);
    of_row.next_factor = splat(factors.next_factor[row - first]);
    of_row.empty = splat_int(factors.empty[row - first]);
    for (int c = row * head_dim; c < (row + 1) * head_dim; c += kWidth) {
      of_row.merge(into.sums + c, next.sums + c);
    }
  }
}

template <class T>
static void write_skinny_rows(const PagedTile& tile, const SoftmaxState& state) {
  for (int row = 0; row < tile.rows; ++row) {
    const int64_t at = tile.first_row + row;
    T* out = static_cast<T*>(tile.out) + at / tile.group * tile.out_stride +
             at % tile.group * tile.head_dim;
    const Vec denominator = splat(state.denominator[row]);
    const Vec inverse = splat(1.0f) / denominator;
    for (int c = 0; c < tile.head_dim; c += kWidth) {
      const Vec sum = load(state.sums + row * tile.head_dim + c);
      store(out + c, denominator == Vec{} ? Vec{} : sum * inverse + Vec{});  // no -0
    }
  }
}

// scores[rows, kPageKeys] = queries * keys, for the first `count` keys of [head_dim, kPageKeys]
template <int rows, int kVectors = kRegisters == 32 && rows <= 6 ? 4 : 2>
static void multiply_by_keys(const float* queries, const float* keys, int count, int head_dim,
                             float* scores) {
  if constexpr (kVectors > 1) {
    if (count <= kWidth) {
      return multiply_by_keys<rows, 1>(queries, keys, count, head_dim, scores);
    }
  }
  for (int key = 0; key < count; key += kVectors * kWidth) {
    Vec sums[rows][kVectors] = {};
    for (int c = 0; c < head_dim; ++c) {
      Vec elements[kVectors];
      for (int v = 0; v < kVectors; ++v) {
        elements[v] = load(keys + c * kPageKeys + key + v * kWidth);
      }
#pragma GCC unroll 8
      for (int i = 0; i < rows; ++i) {
        const Vec query = splat(queries[i * head_dim + c]);
        for (int v = 0; v < kVectors; ++v) sums[i][v] = fma(elements[v], query, sums[i][v]);
      }
    }
    for (int i = 0; i < rows; ++i) {
      for (int v = 0; v < kVectors; ++v) {
        store(scores + i * kPageKeys + key + v * kWidth, sums[i][v]);
      }
    }
  }
}

// sums[rows, head_dim] = factor sums + weights values, columns [column, column + vectors * kWidth)
template <int rows, int vectors, class T>
static inline void multiply_value_columns(const float* weights, const T* values, int begin, int end,
                                          int head_dim, int column, const float* factor,
                                          float* sums) {
  Vec sum[rows][vectors];
  for (int i = 0; i < rows; ++i) {
    for (int v = 0; v < vectors; ++v) {
      sum[i][v] = load(sums + i * head_dim + column + v * kWidth) * splat(factor[i]);
    }
  }
  for (int key = begin; key < end; ++key) {
    const T* value = values + static_cast<int64_t>(key) * head_dim + column;
    Vec elements[vectors];
    for (int v = 0; v < vectors; ++v) elements[v] = load(value + v * kWidth);
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i) {
      const Vec weight = splat(weights[i * kPageKeys + key]);
      for (int v = 0; v < vectors; ++v) sum[i][v] = fma(elements[v], weight, sum[i][v]);
    }
  }
  for (int i = 0; i < rows; ++i) {
    for (int v = 0; v < vectors; ++v) {
      store(sums + i * head_dim + column + v * kWidth, sum[i][v]);
    }
  }
}

// As scale_keys, of one row.
static inline void scale_row(float* scores, const float* scales, int count) {
  for (int key = 0; key < count; key += kWidth) {
    store(scores + key, load(scores + key) * (load(scales + key) * splat(kFloat8Unit)));
  }
}

// As adjust_paged_scores, of one row over the first `count` keys of a page, which is at `first`.
static inline void adjust_scores_of_row(const PagedTile& tile, int32_t position, float slope,
                                        int64_t first, int count, float* scores) {
  const Vec cap = splat(tile.soft_cap * kLog2E);
  const auto left = static_cast<int32_t>(tile.left < kMostPositions ? tile.left : kMostPositions);
  for (int key = 0; key < count; key += kWidth) {
    Vec score = load(scores + key);
    if (tile.soft_cap > 0) score = tanh(score) * cap;
    const auto nearest = static_cast<int32_t>(position - (first + key));
    const IntVec distance = splat_int(nearest) - lane_numbers();
    if (tile.slopes != nullptr) {
      score = fma(splat(-slope), __builtin_convertvector(distance, Vec), score);
    }
    const IntVec visible = (distance >= 0) & (distance <= left);
    store(scores + key, visible ? score : splat(-kInfinity));
  }
}

// As soften_page, of one row.
static inline float soften_row(float* scores, int count, float* maximum, float* denominator) {
  const float before = *maximum;
  Vec greatest = splat(before);
  for (int key = 0; key < count; key += kWidth) greatest = max(load(scores + key), greatest);
  const float now = max_lane(greatest);
  const Vec base = splat(now == -kInfinity ? 0.0f : now);
  for (int key = 0; key < count; key += kWidth) {
    store(scores + key, exp2(load(scores + key) - base));
  }
  using Chains = float __attribute__((vector_size(kChains * sizeof(float))));
  Chains sums = {};
  for (int key = 0; key < count; key += kChains) {
    Chains weights;
    __builtin_memcpy(&weights, scores + key, sizeof(weights));
    sums += weights;
  }
  const Vec factor = exp2(splat(before) - base);
  const Vec sum = splat((sums[0] + sums[1]) + (sums[2] + sums[3]));
  *maximum = now;
  *denominator = fma(splat(*denominator), factor, sum)[0];
  return factor[0];
}

template <int rows, class T>
static void attend_pages_by_keys(const PagedTile& tile, int64_t begin, int64_t end,
                                 const PagedScratch& scratch, const SoftmaxState& state) {
  const int d = tile.head_dim;
  clear_skinny_rows(state, rows, d);
  const int64_t lowest = scratch.positions[0], highest = scratch.positions[rows - 1];
  for (int64_t first = begin; first < end; first += kPageKeys) {
    const int from = clamp(lowest - tile.left - first, kPageKeys);
    const int to = clamp(end - first, kPageKeys);
    if (from >= to) continue;
    const PageOf<T> page(tile, tile.table[first / kPageKeys]);
    for (int key = 0; key < to; key += kWidth) {
      for (int c = 0; c < d; c += kWidth) {
        Vec lanes[kWidth];
        for (int i = 0; i < kWidth; ++i) {
          // Values come from memory meanwhile.
          const int64_t at = static_cast<int64_t>(key + i) * d + c;
          __builtin_prefetch(page.values + at);
          lanes[i] = load(page.keys + at);
        }
        transpose(lanes);
        for (int i = 0; i < kWidth; ++i) {
          store(scratch.keys + (c + i) * kPageKeys + key, lanes[i]);
        }
      }
    }
    multiply_by_keys<rows>(scratch.queries, scratch.keys, to, d, scratch.scores);
    const int count = round_up(to, kWidth);  // those from `to` on are not visible
    const bool all_visible =
        to == kPageKeys && lowest >= first + kPageKeys - 1 && highest - tile.left <= first;
    float factor[rows];
    for (int i = 0; i < rows; ++i) {
      float* scores = scratch.scores + i * kPageKeys;
      if (page.scales.keys != nullptr) scale_row(scores, page.scales.keys, count);
      if (!all_visible || tile.soft_cap > 0 || tile.slopes != nullptr) {
        adjust_scores_of_row(tile, scratch.positions[i], scratch.slopes[i], first, count, scores);
      }
      factor[i] = soften_row(scores, count, state.maximum + i, state.denominator + i);
      if (page.scales.values != nullptr) scale_row(scores, page.scales.values, count);
    }
    // Values of keys that no row sees may be any bytes.
    constexpr int kVectors = rows * 4 <= (kRegisters == 32 ? 24 : 12) ? 4 : 2;
    int c = 0;
    for (; c + kVectors * kWidth <= d; c += kVectors * kWidth) {
      multiply_value_columns<rows, kVectors>(scratch.scores, page.values, from, to, d, c, factor,
                                             state.sums);
    }
    for (; c < d; c += kWidth) {
      multiply_value_columns<rows, 1>(scratch.scores, page.values, from, to, d, c, factor,
                                      state.sums);
    }
  }
}

template <class T, int rows = kSkinnyPagedRows>
static void attend_skinny_rows(const PagedTile& tile, int64_t begin, int64_t end,
                               const PagedScratch& scratch, const SoftmaxState& state) {
  if constexpr (rows > 1) {
    if (tile.rows < rows) return attend_skinny_rows<T, rows - 1>(tile, begin, end, scratch, state);
  }
  attend_pages_by_keys<rows, T>(tile, begin, end, scratch, state);
}
