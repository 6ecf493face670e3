// One tile of attention with online softmax (Milakov and Gimelshein, arXiv 1805.02867; tiled over
// keys as in FlashAttention, arXiv 2205.14135). Included by kernels_body.h.
//
// Key tiles count from the sequence's first key and all sums run in key order, so a row's bits
// depend on its own sequence alone. Scores are kept times log2(e), so that exp is 2^x.

static constexpr float kLog2E = 1.44269504088896340736f;
static constexpr float kInfinity = __builtin_inff();

// Rows of queries treated together: as many as the registers hold accumulators for.
static constexpr int kMostRows = kWidth == 16 ? 8 : 4;

struct TileScratch {
  TileScratch(float* at, int64_t d)
      : keys(at),
        values(keys + kKeyTile * d),
        queries(values + kKeyTile * d),
        sums(queries + kQueryTile * d),
        scores(sums + kQueryTile * d),
        maximum(scores + 8 * kKeyTile),
        denominator(maximum + kQueryTile),
        term(denominator + kQueryTile) {}

  float* keys;         // [d, kKeyTile]: transposed, so that a vector holds neighbouring keys
  float* values;       // [kKeyTile, d]
  float* queries;      // [kQueryTile, d], scaled
  float* sums;         // [kQueryTile, d] exp(scores) V so far
  float* scores;       // [8, kKeyTile]
  float* maximum;      // [kQueryTile] of each row's scores so far
  float* denominator;  // [kQueryTile] sum of exp(scores) so far
  float* term;         // [kKeyTile + kQueryTile] by key - query + kQueryTile - 1
};

template <class T>
static void pack_queries(const AttentionTile& task, TileScratch& scratch, int rows) {
  const Vec factor = splat(task.scale * kLog2E);
  for (int i = 0; i < rows; ++i) {
    const T* from = static_cast<const T*>(task.q) + i * task.q_stride;
    for (int c = 0; c < task.head_dim; c += kWidth) {
      const int64_t at = int64_t{i} * task.head_dim + c;
      store(scratch.queries + at, i < task.queries ? load(from + c) * factor : Vec{});
      store(scratch.sums + at, Vec{});
    }
    scratch.maximum[i] = -kInfinity;
    scratch.denominator[i] = 0;
  }
}

template <class T>
static void pack_keys(const AttentionTile& task, int64_t first, int count, float* to) {
  const T* from = static_cast<const T*>(task.k) + first * task.k_stride;
  for (int key = 0; key < count; key += kWidth) {
    for (int c = 0; c < task.head_dim; c += kWidth) {
      Vec rows[kWidth];
      for (int i = 0; i < kWidth; ++i) {
        rows[i] = key + i < count ? load(from + (key + i) * task.k_stride + c) : Vec{};
      }
      transpose(rows);
      for (int i = 0; i < kWidth; ++i) store(to + (c + i) * kKeyTile + key, rows[i]);
    }
  }
}

template <class T>
static void pack_values(const AttentionTile& task, int64_t first, int count, float* to) {
  const T* from = static_cast<const T*>(task.v) + first * task.v_stride;
  for (int key = 0; key < count; ++key) {
    for (int c = 0; c < task.head_dim; c += kWidth) {
      store(to + key * task.head_dim + c, load(from + key * task.v_stride + c));
    }
  }
}

// What is added to the score of key - query = distance, for all distances of this pair of tiles.
static void fill_term(const AttentionTile& task, int64_t first_key, float* term) {
  int bucket = 0;
  for (int i = 0; i < kKeyTile + kQueryTile; ++i) {
    const int64_t distance = i - (kQueryTile - 1) + first_key - task.first_position;
    const int64_t absolute = distance < 0 ? -distance : distance;
    if (task.slope != nullptr) {
      term[i] = -*task.slope * static_cast<float>(absolute) * kLog2E;
      continue;
    }
    // Neighbouring distances lie in the same or a neighbouring bucket.
    while (bucket + 1 < task.half_buckets && task.bucket_starts[bucket + 1] <= absolute) ++bucket;
    while (task.bucket_starts[bucket] > absolute) --bucket;
    const int row = bucket + (distance > 0 ? task.half_buckets : 0);
    term[i] = task.table[row * task.table_stride] * kLog2E;
  }
}

// scores[rows, vectors of keys] = queries keys
template <int rows, int vectors>
static inline void multiply_keys(const float* queries, const float* keys, int head_dim,
                                 float* scores) {
  Vec sums[rows][vectors] = {};
  for (int c = 0; c < head_dim; ++c) {
    Vec key[vectors];
    for (int v = 0; v < vectors; ++v) key[v] = load(keys + c * kKeyTile + v * kWidth);
    for (int i = 0; i < rows; ++i) {
      const Vec query = splat(queries[i * head_dim + c]);
      for (int v = 0; v < vectors; ++v) sums[i][v] = fma(query, key[v], sums[i][v]);
    }
  }
  for (int i = 0; i < rows; ++i) {
    for (int v = 0; v < vectors; ++v) store(scores + i * kKeyTile + v * kWidth, sums[i][v]);
  }
}

// sums[rows, vectors of columns] = factor sums + weights[rows, begin to end] values
template <int rows, int vectors>
static inline void multiply_values(const float* weights, const float* values, int begin, int end,
                                   int head_dim, const float* factor, float* sums) {
  Vec sum[rows][vectors];
  for (int i = 0; i < rows; ++i) {
    for (int v = 0; v < vectors; ++v) {
      sum[i][v] = load(sums + i * head_dim + v * kWidth) * splat(factor[i]);
    }
  }
  for (int key = begin; key < end; ++key) {
    Vec value[vectors];
    for (int v = 0; v < vectors; ++v) value[v] = load(values + key * head_dim + v * kWidth);
    for (int i = 0; i < rows; ++i) {
      const Vec weight = splat(weights[i * kKeyTile + key]);
      for (int v = 0; v < vectors; ++v) sum[i][v] = fma(weight, value[v], sum[i][v]);
    }
  }
  for (int i = 0; i < rows; ++i) {
    for (int v = 0; v < vectors; ++v) store(sums + i * head_dim + v * kWidth, sum[i][v]);
  }
}

// Turns the scores of one row into exp(score - maximum), those outside [begin, end) into 0, within
// vectors [first, last). Returns the factor that the row's earlier sums take.
static inline float soften(float* scores, const float* term, int first, int last, int begin,
                           int end, float& maximum, float& denominator) {
  Vec greatest = splat(-kInfinity);
  for (int v = first; v < last; ++v) {
    const int key = v * kWidth;
    Vec score = load(scores + key);
    if (term != nullptr) score += load(term + key);
    if (key < begin || key + kWidth > end) {
      const IntVec keys = lane_numbers() + key;
      score = (keys >= splat_int(begin)) & (keys < splat_int(end)) ? score : splat(-kInfinity);
    }
    store(scores + key, score);
    greatest = max(score, greatest);
  }
  const float tile_maximum = max_lane(greatest);
  const float before = maximum;
  if (tile_maximum > maximum) maximum = tile_maximum;
  // No visible key so far: any finite number serves, every weight is 0.
  const float base = maximum == -kInfinity ? 0.0f : maximum;
  Vec sum = {};
  for (int v = first; v < last; ++v) {
    const Vec weight = exp2(load(scores + v * kWidth) - splat(base));
    store(scores + v * kWidth, weight);
    sum += weight;
  }
  const float factor = before == -kInfinity ? 0.0f : exp2(splat(before - base))[0];
  denominator = denominator * factor + sum_lanes(sum);
  return factor;
}

static inline int clamp(int64_t value, int limit) {
  return static_cast<int>(value < 0 ? 0 : value > limit ? limit : value);
}

// `rows` query rows from `row` on, over one tile of `count` keys.
template <int rows>
static void attend(const AttentionTile& task, TileScratch& scratch, int row, int64_t first_key,
                   int count, bool with_term) {
  const int d = task.head_dim;
  // Visible keys of row i: [begin(i), end(i)) of the tile; both grow with i.
  const int64_t offset = task.first_position + row - first_key;
  const auto begin_of = [&](int i) { return clamp(offset + i - task.left, count); };
  const auto end_of = [&](int i) { return clamp(offset + i + task.right + 1, count); };
  const int begin = begin_of(0);
  const int end = end_of(rows - 1);
  if (begin >= end) return;
  const int first = begin / kWidth;
  const int last = (end + kWidth - 1) / kWidth;
  const float* queries = scratch.queries + row * d;
  int v = first;
  for (; v + 2 <= last; v += 2) {
    multiply_keys<rows, 2>(queries, scratch.keys + v * kWidth, d, scratch.scores + v * kWidth);
  }
  if (v < last) {
    multiply_keys<rows, 1>(queries, scratch.keys + v * kWidth, d, scratch.scores + v * kWidth);
  }
  float factor[rows];
  for (int i = 0; i < rows; ++i) {
    const float* term = with_term ? scratch.term + kQueryTile - 1 - row - i : nullptr;
    factor[i] = soften(scratch.scores + i * kKeyTile, term, first, last, begin_of(i), end_of(i),
                       scratch.maximum[row + i], scratch.denominator[row + i]);
  }
  float* sums = scratch.sums + row * d;
  int c = 0;
  for (; c + 2 * kWidth <= d; c += 2 * kWidth) {
    multiply_values<rows, 2>(scratch.scores, scratch.values + c, begin, end, d, factor, sums + c);
  }
  for (; c < d; c += kWidth) {
    multiply_values<rows, 1>(scratch.scores, scratch.values + c, begin, end, d, factor, sums + c);
  }
}

template <class T>
static void attention(const AttentionTile& task) {
  TileScratch scratch(task.scratch, task.head_dim);
  const int rows = (task.queries + 3) / 4 * 4;
  pack_queries<T>(task, scratch, rows);
  const int64_t lowest = task.first_position - task.left;
  const int64_t highest = task.first_position + task.queries + task.right;
  const int64_t end = highest < task.keys ? highest : task.keys;
  const bool with_term = task.slope != nullptr || task.table != nullptr;
  for (int64_t key = lowest > 0 ? lowest / kKeyTile * kKeyTile : 0; key < end; key += kKeyTile) {
    const int count = clamp(task.keys - key, kKeyTile);
    pack_keys<T>(task, key, count, scratch.keys);
    pack_values<T>(task, key, count, scratch.values);
    if (with_term) fill_term(task, key, scratch.term);
    int row = 0;
    for (; row + kMostRows <= rows; row += kMostRows) {
      attend<kMostRows>(task, scratch, row, key, count, with_term);
    }
    for (; row < rows; row += 4) attend<4>(task, scratch, row, key, count, with_term);
  }
  for (int i = 0; i < task.queries; ++i) {
    const float denominator = scratch.denominator[i];
    const Vec inverse = splat(1.0f / denominator);
    T* out = static_cast<T*>(task.out) + i * task.out_stride;
    for (int c = 0; c < task.head_dim; c += kWidth) {
      // A row that sees no key is zero.
      const Vec sum = load(scratch.sums + i * task.head_dim + c);
      store(out + c, denominator == 0 ? Vec{} : sum * inverse);
    }
  }
}
