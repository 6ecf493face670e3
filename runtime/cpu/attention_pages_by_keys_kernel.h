// Attention over pages for a few rows. Included by attention_pages_kernel.h.
//
// A lane holds one key (of scores) or one column (of values), where attend_page has one row, so
// that a few rows need not fill a vector. Every number is the same expression as there: sums over
// columns and over keys add in the same order, with one rounding for each product and sum.

static constexpr int kFewPagedRows = 8;

// scores[rows, kPageKeys] = queries * keys, for the first `count` keys of [head_dim, kPageKeys]
template <int rows, int kVectors = kWidth == 16 && rows <= 6 ? 4 : 2>
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
        const Vec query = splat(queries[c * kQueryTile + i]);
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

// As adjust_paged_scores, of one row over the first `count` keys of a page, which is at `first`.
static inline void adjust_scores_of_row(const PagedTile& tile, int32_t position, float slope,
                                        int64_t first, int count, float* scores) {
  const Vec cap = splat(tile.soft_cap * kLog2E);
  const auto left = static_cast<int32_t>(tile.left < kMostPositions ? tile.left : kMostPositions);
  for (int key = 0; key < count; key += kWidth) {
    Vec score = load(scores + key);
    if (tile.soft_cap > 0) score = accurate_tanh(score) * cap;
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
  float* const sums = scratch.values;  // [rows, d]
  float maximum[rows], denominator[rows];
  for (int i = 0; i < rows; ++i) {
    maximum[i] = -kInfinity;
    denominator[i] = 0;
    for (int c = 0; c < d; c += kWidth) store(sums + i * d + c, Vec{});
  }
  const int64_t lowest = scratch.positions[0], highest = scratch.positions[rows - 1];
  for (int64_t first = begin; first < end; first += kPageKeys) {
    const int from = clamp(lowest - tile.left - first, kPageKeys);
    const int to = clamp(end - first, kPageKeys);
    if (from >= to) continue;
    const int64_t page = tile.table[first / kPageKeys] * tile.page_stride;
    const T* keys = static_cast<const T*>(tile.keys) + page;
    const T* values = static_cast<const T*>(tile.values) + page;
    for (int key = 0; key < to; key += kWidth) {
      for (int c = 0; c < d; c += kWidth) {
        Vec lanes[kWidth];
        for (int i = 0; i < kWidth; ++i) {
          lanes[i] = load(keys + static_cast<int64_t>(key + i) * d + c);
        }
        transpose(lanes);
        for (int i = 0; i < kWidth; ++i) {
          store(scratch.keys + (c + i) * kPageKeys + key, lanes[i]);
        }
      }
    }
    multiply_by_keys<rows>(scratch.queries, scratch.keys, to, d, scratch.scores);
    const int count = (to + kWidth - 1) / kWidth * kWidth;  // those from `to` on are not visible
    const bool all_visible =
        to == kPageKeys && lowest >= first + kPageKeys - 1 && highest - tile.left <= first;
    float factor[rows];
    for (int i = 0; i < rows; ++i) {
      float* scores = scratch.scores + i * kPageKeys;
      if (!all_visible || tile.soft_cap > 0 || tile.slopes != nullptr) {
        adjust_scores_of_row(tile, scratch.positions[i], scratch.slopes[i], first, count, scores);
      }
      factor[i] = soften_row(scores, count, maximum + i, denominator + i);
    }
    // Values of keys that no row sees may be any bytes.
    constexpr int kVectors = rows * 4 <= (kWidth == 16 ? 24 : 12) ? 4 : 2;
    int c = 0;
    for (; c + kVectors * kWidth <= d; c += kVectors * kWidth) {
      multiply_value_columns<rows, kVectors>(scratch.scores, values, from, to, d, c, factor, sums);
    }
    for (; c < d; c += kWidth) {
      multiply_value_columns<rows, 1>(scratch.scores, values, from, to, d, c, factor, sums);
    }
  }
  for (int i = 0; i < rows; ++i) {
    for (int c = 0; c < d; ++c) state.sums[c * state.stride + i] = sums[i * d + c];
    state.maximum[i] = maximum[i];
    state.denominator[i] = denominator[i];
  }
}

template <class T, int rows = kFewPagedRows>
static void attend_few_rows(const PagedTile& tile, int64_t begin, int64_t end,
                            const PagedScratch& scratch, const SoftmaxState& state) {
  if constexpr (rows > 1) {
    if (tile.rows < rows) return attend_few_rows<T, rows - 1>(tile, begin, end, scratch, state);
  }
  attend_pages_by_keys<rows, T>(tile, begin, end, scratch, state);
}
