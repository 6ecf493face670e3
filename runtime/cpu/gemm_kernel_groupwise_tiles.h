// The tiles of MultiplyGroupwise, included by gemm_kernel_groupwise.h for each way to add products.

static constexpr int kGroupTileRows = kRegisters == 32 ? 6 : 3;
// Few rows leave registers for all vectors of a stripe.
static constexpr int kGroupSkinnyRows = kRegisters == 32 ? 3 : 1;
static constexpr int kGroupColumns = static_cast<int>(kStripeColumns);
// Bytes of a step, which has 4 input features of every column, or with 4 bits 8.
static constexpr int kGroupStepBytes = 4 * kGroupColumns;
static constexpr int64_t kGroupAhead = 4096;

// to[rows, vectors * kWidth] = the products of some rows and the columns from `begin` on, `span`
// input features at a time. Rows of `to` are a stripe apart.
template <int bits, int span, int rows, int vectors>
[[gnu::noinline]] static void multiply_tile(const MultiplyGroupwise& task, int64_t first_row,
                                            int begin, float* to) {
  constexpr int kSpanBytes = span * kGroupColumns * bits / 8;
  constexpr int kSpansOfBlock = static_cast<int>(kGroupBlock) / span;
  const int64_t x_stride = task.blocks * kGroupBlock;
  const int8_t* x = task.x + first_row * x_stride;
  const float* x_scales = task.x_scales + first_row * task.blocks;
  const int32_t* x_sums = task.x_sums + first_row * 2 * task.blocks;
  const int64_t of_vectors = int64_t{2} * kGroupColumns;  // bytes of scales, or of minima
  const int64_t header = task.minima ? 2 * of_vectors : of_vectors;
  const int64_t spans_of_group = task.group / span;
  const bool prefetch = begin == 0 && first_row == 0;
  const uint8_t* scales = task.weight;
  const uint8_t* values = scales + header;
  int64_t left = spans_of_group;
  Vec whole[rows][vectors] = {};
  for (int64_t s = 0; s < task.blocks * kSpansOfBlock; ++s) {
    IntVec sums[rows][vectors];
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i) {
      const int32_t* of_row = x_sums + i * 2 * task.blocks;
      const int32_t sum = span == 16 ? of_row[s] : of_row[2 * s] + of_row[2 * s + 1];
      constexpr int32_t kShifted = bits == 8 && kSignedBytes ? 128 : 0;
      const int32_t zero = task.minima ? 0 : 1 << (bits - 1);
      const IntVec start = splat_int((kShifted - zero) * sum);
#pragma GCC unroll 16
      for (int v = 0; v < vectors; ++v) sums[i][v] = start;
    }
    const uint8_t* at = values + begin * 4;
    const int8_t* x_at = x + s * span;
    constexpr int kSteps = kSpanBytes / kGroupStepBytes;
#pragma GCC unroll 8
    for (int step = 0; step < kSteps; ++step, at += kGroupStepBytes) {
      if (prefetch) {
#pragma GCC unroll 4
        for (int line = 0; line < 4; ++line) __builtin_prefetch(at + kGroupAhead + line * 64);
      }
      IntVec w[vectors];
#pragma GCC unroll 16
      for (int v = 0; v < vectors; ++v) {
        w[v] = load_bytes(at + v * kWidth * 4);
        if (bits == 8 && kSignedBytes) w[v] ^= splat_int(static_cast<int32_t>(0x80808080u));
      }
#pragma GCC unroll 2
      for (int half = 0; half < (bits == 4 ? 2 : 1); ++half) {
        const int k = (bits == 4 ? 2 * step + half : step) * 4;
        IntVec part[vectors];
#pragma GCC unroll 16
        for (int v = 0; v < vectors; ++v) {
          part[v] = bits == 8 ? w[v] : (half == 0 ? w[v] : w[v] >> 4) & 0x0f0f0f0f;
        }
#pragma GCC unroll 8
        for (int i = 0; i < rows; ++i) {
          int32_t elements;
          __builtin_memcpy(&elements, x_at + i * x_stride + k, sizeof(elements));
          const IntVec element = splat_int(elements);
#pragma GCC unroll 16
          for (int v = 0; v < vectors; ++v) {
            sums[i][v] = add_products(sums[i][v], part[v], element);
          }
        }
      }
    }
    const int64_t block = s / kSpansOfBlock;
#pragma GCC unroll 16
    for (int v = 0; v < vectors; ++v) {
      const int64_t column = begin + v * kWidth;
      const Vec scale = load_half(scales + 2 * column);
#pragma GCC unroll 8
      for (int i = 0; i < rows; ++i) {
        const Vec x_scale = splat(x_scales[i * task.blocks + block]);
        const Vec product = __builtin_convertvector(sums[i][v], Vec) * scale;
        whole[i][v] = fma(product, x_scale, whole[i][v]);
      }
    }
    if (task.minima) {
#pragma GCC unroll 8
      for (int i = 0; i < rows; ++i) {
        const int32_t* of_row = x_sums + i * 2 * task.blocks;
        const int32_t sum = span == 16 ? of_row[s] : of_row[2 * s] + of_row[2 * s + 1];
        const Vec offset = splat(x_scales[i * task.blocks + block] * static_cast<float>(sum));
#pragma GCC unroll 16
        for (int v = 0; v < vectors; ++v) {
          const Vec minimum = load_half(scales + of_vectors + 2 * (begin + v * kWidth));
          whole[i][v] = fma(minimum, offset, whole[i][v]);
        }
      }
    }
    values += kSpanBytes;
    if (--left == 0) {
      left = spans_of_group;
      scales = values;
      values += header;
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 16
    for (int v = 0; v < vectors; ++v) {
      store(to + i * kGroupColumns + begin + v * kWidth, whole[i][v]);
    }
  }
}

// Calls multiply_tile for `count` rows, and all columns of the stripe.
template <int bits, int span, int rows = kGroupTileRows>
static inline void multiply_rows(const MultiplyGroupwise& task, int64_t first_row, int count,
                                 float* to) {
  if constexpr (rows > 1) {
    if (count < rows) return multiply_rows<bits, span, rows - 1>(task, first_row, count, to);
  }
  constexpr int kVectors = rows <= kGroupSkinnyRows ? 4 : 2;
  for (int begin = 0; begin < task.columns; begin += kVectors * kWidth) {
    multiply_tile<bits, span, rows, kVectors>(task, first_row, begin, to);
  }
}

// out = activation(tile + bias)
template <class T, class F>
static inline void finish_group_tile(const MultiplyGroupwise& task, int64_t first_row, int rows,
                                     const float* tile, F activation) {
  const auto columns = static_cast<int>(task.columns);
  for (int i = 0; i < rows; ++i, tile += kGroupColumns) {
    T* out = static_cast<T*>(task.out) + (first_row + i) * task.out_stride;
    for (int c = 0; c < columns; c += kWidth) {
      const int there = columns - c;
      Vec value = load(tile + c);
      if (task.bias != nullptr) {
        value += there >= kWidth ? load(task.bias + c) : load_first(task.bias + c, there);
      }
      value = activation(value);
      if (there >= kWidth) {
        store(out + c, value);
      } else {
        store_first(out + c, value, there);
      }
    }
  }
}

template <int bits, int span, class T>
static inline void multiply_stripe_of(const MultiplyGroupwise& task) {
  float tile[kGroupTileRows * kGroupColumns];
  // The heights of tiles differ by at most one row.
  const int64_t tiles = ceil_div(task.rows, kGroupTileRows);
  int64_t row = 0;
  for (int64_t i = 0; i < tiles; ++i) {
    const auto count = static_cast<int>((task.rows - row) / (tiles - i));
    multiply_rows<bits, span>(task, row, count, tile);
    with_activation(task.activation,
                    [&](auto f) { finish_group_tile<T>(task, row, count, tile, f); });
    row += count;
  }
}

template <class T>
static void multiply(const MultiplyGroupwise& task) {
  if (task.bits == 4) return multiply_stripe_of<4, 32, T>(task);
  if (task.group >= 32) return multiply_stripe_of<8, 32, T>(task);
  multiply_stripe_of<8, 16, T>(task);
}
