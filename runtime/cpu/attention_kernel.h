// Computes one tile of attention with online softmax (Milakov and Gimelshein, arXiv 1805.02867),
// tiled over keys as in FlashAttention (arXiv 2205.14135). Included by kernels_body.h.
//
// Each vector holds one number for kWidth neighbouring queries. Keys and values are then read where
// they lie, one broadcast element at a time: only queries are transposed, keys need no padding, and
// the softmax needs no sum across lanes. Lanes never mix, and sums run in the order of the
// sequence's keys, in tiles that count from its first key. So the bits of a row depend on its own
// sequence only. Scores are multiplied by log2(e), so that exp becomes 2^x.

static constexpr float kLog2E = 1.44269504088896340736f;
static constexpr float kInfinity = __builtin_inff();

// Queries that are processed together: two vectors. They meet as many keys (or columns of values)
// at once as leave registers for the sums.
static constexpr int kGroup = 2 * kWidth;
static_assert(kQueryGroup % kGroup == 0);
static constexpr int kAtOnce = kRegisters == 32 ? 8 : 4;

struct TileScratch {
  TileScratch(float* at, int64_t d)
      : queries(at),
        sums(queries + kQueryTile * d),
        keys(sums + kQueryTile * d),
        values(keys + kKeyTile * d),
        scores(values + kKeyTile * d),
        maximum(scores + kKeyTile * kQueryGroup),
        denominator(maximum + kQueryTile),
        term(denominator + kQueryTile),
        positions(term + kTileDistances),
        of_queries(positions + kTileDistances * d),
        of_keys(of_queries + kTileDistances * kQueryGroup),
        packed(of_keys + kKeyTile * kTileDistances),
        slots(reinterpret_cast<int32_t*>(packed + kQueryTile * d)) {}

  float* queries;      // [d, kQueryTile], scaled
  float* sums;         // [d, kQueryTile] sums of exp(scores) V so far
  float* keys;         // [kKeyTile, d] converted, if not float32
  float* values;       // [kKeyTile, d] converted, if not float32
  float* scores;       // [kKeyTile, kGroup]
  float* maximum;      // [kQueryTile] largest score of each query so far
  float* denominator;  // [kQueryTile] sum of exp(scores) so far
  float* term;         // [kTileDistances], index query - key + kKeyTile - 1
  float* positions;    // [kTileDistances, d] rows of a position table
  float* of_queries;   // [kTileDistances, kGroup] queries times position keys
  float* of_keys;      // [kKeyTile, kTileDistances] keys times position queries
  float* packed;       // [d, kQueryTile] position queries, scaled
  int32_t* slots;      // [kTileDistances], index as `term`, minus first slot used
};

static inline int clamp(int64_t value, int limit) {
  return static_cast<int>(value < 0 ? 0 : value > limit ? limit : value);
}

// The float32 rows of a tile, with d elements each.
struct Rows {
  const float* first;
  int64_t stride;
};

// to[head_dim, kQueryTile] = up to kQueryTile rows, scaled and transposed.
template <class T>
static void pack_scaled(const AttentionTile& task, const T* from, int64_t stride, int rows,
                        float* to) {
  const Vec factor = splat(task.scale * kLog2E);
  for (int row = 0; row < rows; row += kWidth) {
    for (int c = 0; c < task.head_dim; c += kWidth) {
      Vec lanes[kWidth];
      for (int i = 0; i < kWidth; ++i) {
        lanes[i] = row + i < rows ? load(from + (row + i) * stride + c) * factor : Vec{};
      }
      transpose(lanes);
      for (int i = 0; i < kWidth; ++i) store(to + (c + i) * kQueryTile + row, lanes[i]);
    }
  }
}

// Resets the sums to their state before the first key.
static inline void clear_sums(const AttentionTile& task, TileScratch& scratch) {
  for (int c = 0; c < task.head_dim; ++c) {
    for (int query = 0; query < task.queries; query += kWidth) {
      store(scratch.sums + c * kQueryTile + query, Vec{});
    }
  }
  for (int query = 0; query < task.queries; query += kWidth) {
    store(scratch.maximum + query, splat(-kInfinity));
    store(scratch.denominator + query, Vec{});
  }
}

// Prefetches rows before they are used one after another. Rows of a head lie too far apart for the
// hardware prefetcher.
template <class T>
static inline void prefetch_rows(const T* from, int64_t stride, int rows, int columns) {
  for (int i = 0; i < rows; ++i) {
    for (int c = 0; c < columns; c += 64 / int{sizeof(T)})
      __builtin_prefetch(from + i * stride + c);
  }
}

static inline Rows as_floats(const float* from, int64_t stride, int, int, float*) {
  return {from, stride};
}

static inline Rows as_floats(const bfloat16* from, int64_t stride, int rows, int columns,
                             float* to) {
  for (int i = 0; i < rows; ++i) {
    for (int c = 0; c < columns; c += kWidth) {
      store(to + i * columns + c, load(from + i * stride + c));
    }
  }
  return {to, columns};
}

// Computes what is added to the scores of this pair of tiles, for every distance of query and key.
static void fill_term(const AttentionTile& task, int64_t first_key, float* term) {
  int bucket = 0;
  for (int i = 0; i < kQueryTile + kKeyTile; ++i) {
    const int64_t distance = i - (kKeyTile - 1) + task.first_position - first_key;
    const bool right = distance < 0;
    const int64_t absolute = right ? -distance : distance;
    if (task.slope != nullptr) {
      term[i] = -*task.slope * static_cast<float>(absolute) * kLog2E;
      continue;
    }
    // Neighbouring distances lie in the same bucket or in neighbouring ones, so the search goes on
    // from the last bucket.
    const int64_t far = right && !task.bidirectional ? 0 : absolute;
    while (bucket + 1 < task.side_buckets && task.bucket_starts[bucket + 1] <= far) ++bucket;
    while (task.bucket_starts[bucket] > far) --bucket;
    const int row = bucket + (right && task.bidirectional ? task.side_buckets : 0);
    term[i] = task.table[row * task.table_stride] * kLog2E;
  }
}

// scores[keys, queries] for `count` keys at a time, with rows `stride` apart. The last keys may
// overlap the ones before, which computes the same scores again: fewer sums at a time would have to
// wait for each other's steps.
template <int vectors, int count = kAtOnce>
static inline void multiply_keys(const float* queries, Rows keys, int rows, int head_dim,
                                 float* scores, int stride = kGroup) {
  if constexpr (count > 1) {
    if (rows < count) {
      return multiply_keys<vectors, count / 2>(queries, keys, rows, head_dim, scores, stride);
    }
  }
  for (int done = 0; done < rows; done += count) {
    const int row = done + count <= rows ? done : rows - count;
    const float* key = keys.first + row * keys.stride;
    Vec sums[count][vectors] = {};
    for (int c = 0; c < head_dim; ++c) {
      Vec query[vectors];
      for (int v = 0; v < vectors; ++v) query[v] = load(queries + c * kQueryTile + v * kWidth);
      for (int i = 0; i < count; ++i) {
        const Vec element = splat(key[i * keys.stride + c]);
        for (int v = 0; v < vectors; ++v) sums[i][v] = fma(element, query[v], sums[i][v]);
      }
    }
    for (int i = 0; i < count; ++i) {
      for (int v = 0; v < vectors; ++v) {
        store(scores + (row + i) * stride + v * kWidth, sums[i][v]);
      }
    }
  }
}

// sums[columns, queries] = factor sums + values^T weights
template <int vectors>
static inline void multiply_values(const float* weights, Rows values, int rows, int head_dim,
                                   const Vec* factor, float* sums) {
  for (int c = 0; c < head_dim; c += kAtOnce) {
    Vec sum[kAtOnce][vectors];
    for (int i = 0; i < kAtOnce; ++i) {
      for (int v = 0; v < vectors; ++v) {
        sum[i][v] = load(sums + (c + i) * kQueryTile + v * kWidth) * factor[v];
      }
    }
    const float* value = values.first + c;
    for (int row = 0; row < rows; ++row, value += values.stride) {
      Vec weight[vectors];
      for (int v = 0; v < vectors; ++v) weight[v] = load(weights + row * kGroup + v * kWidth);
      for (int i = 0; i < kAtOnce; ++i) {
        const Vec element = splat(value[i]);
        for (int v = 0; v < vectors; ++v) sum[i][v] = fma(element, weight[v], sum[i][v]);
      }
    }
    for (int i = 0; i < kAtOnce; ++i) {
      for (int v = 0; v < vectors; ++v) {
        store(sums + (c + i) * kQueryTile + v * kWidth, sum[i][v]);
      }
    }
  }
}

// Rows of the position-key table that a pair of tiles needs: those of the slots that its distances
// use, and the number of these slots.
struct Relative {
  Rows position_keys = {nullptr, 0};  // [count, d]
  int count = 0;
};

template <class T>
static Relative prepare_relative(const AttentionTile& task, TileScratch& scratch, int64_t first_key,
                                 int rows, Rows keys) {
  const int64_t nearest = task.first_position - first_key;
  const auto slot_at = [&](int64_t distance) {
    const int64_t limit = task.slot_limit;
    return task.slots[distance < -limit ? -limit : distance > limit ? limit : distance];
  };
  const int32_t first = slot_at(nearest - (rows - 1));
  const int32_t last = slot_at(nearest + task.queries - 1);
  for (int i = 0; i < kTileDistances; ++i) {
    // Lanes without a query and rows without a key must read some valid slot, whichever it is.
    const int32_t slot = slot_at(i - (kKeyTile - 1) + nearest);
    scratch.slots[i] = (slot < first ? first : slot > last ? last : slot) - first;
  }
  Relative relative;
  relative.count = last - first + 1;
  const int64_t begin = first * task.position_stride;
  if (task.position_keys != nullptr) {
    relative.position_keys =
        as_floats(static_cast<const T*>(task.position_keys) + begin, task.position_stride,
                  relative.count, task.head_dim, scratch.positions);
  }
  if (task.position_queries == nullptr) return relative;
  const T* from = static_cast<const T*>(task.position_queries) + begin;
  for (int slot = 0; slot < relative.count; slot += kQueryTile) {
    float* const packed = scratch.packed;
    const int count = clamp(relative.count - slot, kQueryTile);
    pack_scaled(task, from + slot * task.position_stride, task.position_stride, count, packed);
    for (int lane = 0; lane < count; lane += kWidth) {
      multiply_keys<1>(packed + lane, keys, rows, task.head_dim, scratch.of_keys + slot + lane,
                       kTileDistances);
    }
  }
  return relative;
}

// Adds the relative terms to scores. `slots` points to the slot for the distance of query 0 and key
// 0. `of_queries` points to query 0 and `of_keys` to key 0; either may be null.
static inline void add_relative(float* scores, int rows, const int32_t* slots,
                                const float* of_queries, const float* of_keys) {
  for (int row = 0; row < rows; ++row) {
    const IntVec slot = load_int(slots - row);
    Vec score = load(scores + row * kGroup);
    if (of_queries != nullptr) score += gather(of_queries, slot * kGroup + lane_numbers());
    if (of_keys != nullptr) score += gather(of_keys + row * kTileDistances, slot);
    store(scores + row * kGroup, score);
  }
}

// Adds the score term and hides keys that the mask excludes. `term` points to the distance of query
// 0 and key 0, and `position` is that distance.
static inline void adjust_scores(float* scores, int rows, const float* term, int64_t position,
                                 const AttentionTile& task) {
  // Distances never exceed 2^30, but the limits may.
  const auto limit = [](int64_t value) {
    return splat_int(static_cast<int32_t>(value < 1 << 30 ? value : 1 << 30));
  };
  const IntVec left = limit(task.left);
  const IntVec right = limit(task.right);
  const IntVec distance = lane_numbers() + splat_int(static_cast<int32_t>(position));
  for (int row = 0; row < rows; ++row) {
    Vec score = load(scores + row * kGroup);
    if (term != nullptr) score += load(term - row);
    const IntVec from_key = distance - row;
    const IntVec visible = (from_key <= left) & (-from_key <= right);
    score = visible ? score : splat(-kInfinity);
    store(scores + row * kGroup, score);
  }
}

// Replaces the scores of one vector of queries by exp(score - maximum). Returns the factor by which
// earlier sums must be multiplied. Four independent chains hide the latency of additions.
static inline Vec soften(float* scores, int rows, float* maximum, float* denominator) {
  const Vec before = load(maximum);
  Vec greatest[4] = {before, before, before, before};
  int row = 0;
  for (; row + 4 <= rows; row += 4) {
    for (int i = 0; i < 4; ++i) {
      greatest[i] = max(load(scores + (row + i) * kGroup), greatest[i]);
    }
  }
  for (; row < rows; ++row) greatest[0] = max(load(scores + row * kGroup), greatest[0]);
  const Vec now = max(max(greatest[0], greatest[1]), max(greatest[2], greatest[3]));
  // Any finite base will do if no key was visible so far: all weights are 0.
  const Vec base = now == splat(-kInfinity) ? Vec{} : now;
  Vec sums[4] = {};
  for (row = 0; row + 4 <= rows; row += 4) {
    for (int i = 0; i < 4; ++i) {
      float* score = scores + (row + i) * kGroup;
      const Vec weight = exp2(load(score) - base);
      store(score, weight);
      sums[i] += weight;
    }
  }
  for (; row < rows; ++row) {
    const Vec weight = exp2(load(scores + row * kGroup) - base);
    store(scores + row * kGroup, weight);
    sums[0] += weight;
  }
  const Vec factor = exp2(before - base);
  store(maximum, now);
  store(denominator, load(denominator) * factor + ((sums[0] + sums[1]) + (sums[2] + sums[3])));
  return factor;
}

// Processes a group of queries, starting at `query`, with one tile of `count` keys.
template <int vectors>
static void attend(const AttentionTile& task, TileScratch& scratch, int query, int64_t first_key,
                   int count, Rows keys, Rows values, bool with_term, const Relative& relative) {
  // The keys of the tile that any of the queries sees are [begin, end).
  const int64_t offset = task.first_position + query - first_key;
  const int64_t last = offset + vectors * kWidth - 1;
  const int begin = clamp(offset - task.left, count);
  const int end = clamp(last + task.right + 1, count);
  if (begin >= end) return;
  keys.first += begin * keys.stride;
  values.first += begin * values.stride;
  const int rows = end - begin;
  multiply_keys<vectors>(scratch.queries + query, keys, rows, task.head_dim, scratch.scores);
  const bool has_queries = relative.position_keys.first != nullptr;
  if (has_queries) {
    multiply_keys<vectors>(scratch.queries + query, relative.position_keys, relative.count,
                           task.head_dim, scratch.of_queries);
  }
  const bool all_visible = last - task.left <= begin && offset + task.right >= end - 1;
  Vec factor[vectors];
  for (int v = 0; v < vectors; ++v) {
    const int at = query + v * kWidth;
    if (relative.count > 0) {
      add_relative(
          scratch.scores + v * kWidth, rows, scratch.slots + at - begin + kKeyTile - 1,
          has_queries ? scratch.of_queries + v * kWidth : nullptr,
          task.position_queries != nullptr ? scratch.of_keys + begin * kTileDistances : nullptr);
    }
    if (with_term || !all_visible) {
      const float* term = with_term ? scratch.term + at - begin + kKeyTile - 1 : nullptr;
      adjust_scores(scratch.scores + v * kWidth, rows, term, offset + v * kWidth - begin, task);
    }
    factor[v] =
        soften(scratch.scores + v * kWidth, rows, scratch.maximum + at, scratch.denominator + at);
  }
  multiply_values<vectors>(scratch.scores, values, rows, task.head_dim, factor,
                           scratch.sums + query);
}

// Divides the sums by the denominators, transposes them back and writes the rows of the tile. A
// query that sees no key gets zeros.
template <class T>
static void write_rows(const AttentionTile& task, const TileScratch& scratch) {
  for (int query = 0; query < task.queries; query += kWidth) {
    const Vec denominator = load(scratch.denominator + query);
    const Vec inverse = splat(1.0f) / denominator;
    const int count = clamp(task.queries - query, kWidth);
    for (int c = 0; c < task.head_dim; c += kWidth) {
      Vec rows[kWidth];
      for (int i = 0; i < kWidth; ++i) {
        const Vec sum = load(scratch.sums + (c + i) * kQueryTile + query);
        rows[i] = denominator == Vec{} ? Vec{} : sum * inverse;
      }
      transpose(rows);
      T* out = static_cast<T*>(task.out) + query * task.out_stride + c;
      for (int i = 0; i < count; ++i) store(out + i * task.out_stride, rows[i]);
    }
  }
}

template <class T>
static void attention(const AttentionTile& task) {
  TileScratch scratch(task.scratch, task.head_dim);
  clear_sums(task, scratch);
  pack_scaled(task, static_cast<const T*>(task.q), task.q_stride, task.queries, scratch.queries);
  const int64_t lowest = task.first_position - task.left;
  const int64_t highest = task.first_position + task.queries + task.right;
  const int64_t end = highest < task.keys ? highest : task.keys;
  const bool with_term = task.slope != nullptr || task.table != nullptr;
  for (int64_t key = lowest > 0 ? lowest / kKeyTile * kKeyTile : 0; key < end; key += kKeyTile) {
    const int count = clamp(task.keys - key, kKeyTile);
    const T* k = static_cast<const T*>(task.k) + key * task.k_stride;
    const T* v = static_cast<const T*>(task.v) + key * task.v_stride;
    prefetch_rows(k, task.k_stride, count, task.head_dim);
    prefetch_rows(v, task.v_stride, count, task.head_dim);
    const Rows keys = as_floats(k, task.k_stride, count, task.head_dim, scratch.keys);
    const Rows values = as_floats(v, task.v_stride, count, task.head_dim, scratch.values);
    if (with_term) fill_term(task, key, scratch.term);
    Relative relative;
    if (task.slots != nullptr) relative = prepare_relative<T>(task, scratch, key, count, keys);
    for (int query = 0; query < task.queries; query += kGroup) {
      if (query + kWidth < task.queries) {
        attend<2>(task, scratch, query, key, count, keys, values, with_term, relative);
      } else {
        attend<1>(task, scratch, query, key, count, keys, values, with_term, relative);
      }
    }
  }
  write_rows<T>(task, scratch);
}
