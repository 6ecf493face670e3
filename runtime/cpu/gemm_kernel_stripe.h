// Dense layers of a few rows in bfloat16 and int8 by vectors, a stripe of columns at a time
// (MultiplyStripe in kernels.h); where there is AMX, gemm_kernel_stripe_tiles.h has them. Included
// by kernels_body.h.
//
// The weights of a stripe lie one after another in the order in which they are read, so that they
// stream from memory; a tile of rows keeps its sums in registers meanwhile. Further tiles of rows
// find the stripe in the second-level cache.

using MultiplyStripeKernel = void (*)(const MultiplyStripe&);

#if defined(__AVX512BF16__)

// out = sum + bias of a row and of the columns from `column` on, at most a vector of them.
template <class T>
static inline void finish_stripe(const MultiplyStripe& task, int64_t row, int64_t column, Vec sum) {
  const int64_t left = task.columns - column;
  T* out = static_cast<T*>(task.out) + row * task.out_stride + column;
  const float* bias = task.bias + (task.bias != nullptr ? column : 0);
  if (left >= kWidth) {
    store(out, bias != nullptr ? sum + load(bias) : sum);
  } else if (left > 0) {
    const auto count = static_cast<int>(left);
    store_first(out, bias != nullptr ? sum + load_first(bias, count) : sum, count);
  }
}

#endif

#if defined(__AVX512F__) && !defined(__AMX_BF16__)

// Bytes that are prefetched ahead of what is read, across the ends of the hardware prefetcher's
// pages and of the stripe: by a single tile of rows, and by the first of several.
static constexpr int64_t kStripeAhead = 1024;
static constexpr int64_t kStripeFarAhead = 32768;
// The rows of a tile of sums, at most.
static constexpr int kMostStripeRows = 6;
// Vectors of sums in a row of a stripe.
static constexpr int kStripeVectors = static_cast<int>(kStripeColumns) / kWidth;

// Calls tile.run<rows>(first row) for all rows, in tiles of at most `most` rows whose heights
// differ by at most one.
template <int most, class Tile, int rows = most>
static inline void for_row_tile(int count, const Tile& tile, int64_t row) {
  if constexpr (rows > 1) {
    if (count < rows) return for_row_tile<most, Tile, rows - 1>(count, tile, row);
  }
  tile.template run<rows>(row);
}

template <int most, class Tile>
static inline void for_row_tiles(int64_t rows, const Tile& tile) {
  const int64_t tiles = ceil_div(rows, most);
  int64_t row = 0;
  for (int64_t i = 0; i < tiles; ++i) {
    const int64_t count = (rows - row) / (tiles - i);
    for_row_tile<most>(static_cast<int>(count), tile, row);
    row += count;
  }
}

// A second tile of rows finds this stripe in the cache, and prefetches the next one.
static inline int64_t prefetch_distance(const MultiplyStripe& task, int64_t first_row) {
  if (first_row > 0) return task.stripe_bytes;
  return task.rows > kMostStripeRows ? kStripeFarAhead : kStripeAhead;
}

// Into the second-level cache: from the first they would drive out x and what is read now.
static inline void prefetch_stripe(const void* weight, int64_t ahead) {
  const char* at = static_cast<const char*>(weight) + ahead;
#pragma GCC unroll 4
  for (int line = 0; line < 4; ++line) __builtin_prefetch(at + line * 64, 0, 2);
}

#if defined(__AVX512BF16__)

// Two neighbouring elements of x in every lane; of the last odd one its neighbour is zero.
static inline __m512i splat_pair(const bfloat16* x, bool both) {
  uint32_t pair = *x;
  if (both) __builtin_memcpy(&pair, x, sizeof(pair));
  return _mm512_set1_epi32(static_cast<int>(pair));
}

template <class T>
struct StripeOfBfloat16 {
  const MultiplyStripe& task;

  template <int rows>
  [[gnu::noinline]] void run(int64_t first_row) const {
    const bfloat16* x = static_cast<const bfloat16*>(task.x) + first_row * task.x_stride;
    const int64_t ahead = prefetch_distance(task, first_row);
    Vec whole[rows][kStripeVectors] = {};
    for (int64_t first = 0; first < task.in_features; first += task.chunk) {
      Vec sums[rows][kStripeVectors] = {};
      const int64_t left = task.in_features - first;
      add<rows>(x, first, first + (left < task.chunk ? left : task.chunk), ahead, sums);
      for (int i = 0; i < rows; ++i) {
        for (int v = 0; v < kStripeVectors; ++v) {
          whole[i][v] = first == 0 ? sums[i][v] : whole[i][v] + sums[i][v];
        }
      }
    }
    for (int i = 0; i < rows; ++i) {
      for (int v = 0; v < kStripeVectors; ++v) {
        finish_stripe<T>(task, first_row + i, v * kWidth, whole[i][v]);
      }
    }
  }

  // sums += x W^T of input features [first, end), pair after pair by VDPBF16PS
  template <int rows>
  void add(const bfloat16* x, int64_t first, int64_t end, int64_t ahead,
           Vec (*sums)[kStripeVectors]) const {
    for (int64_t k = first; k < end; k += 2) {
      const bfloat16* at = static_cast<const bfloat16*>(task.weight) + k * kStripeColumns;
      prefetch_stripe(at, ahead);
      __m512i columns[kStripeVectors];
      for (int v = 0; v < kStripeVectors; ++v) {
        columns[v] = _mm512_loadu_si512(at + v * 2 * kWidth);
      }
#pragma GCC unroll 8
      for (int i = 0; i < rows; ++i) {
        const __m512i pair = splat_pair(x + i * task.x_stride + k, k + 1 < end);
        for (int v = 0; v < kStripeVectors; ++v) {
          sums[i][v] =
              (Vec)_mm512_dpbf16_ps((__m512)sums[i][v], (__m512bh)pair, (__m512bh)columns[v]);
        }
      }
    }
  }
};

template <class T>
static void multiply_stripe(const MultiplyStripe& task) {
  for_row_tiles<kMostStripeRows>(task.rows, StripeOfBfloat16<T>{task});
}

template <class T>
static constexpr MultiplyStripeKernel kMultiplyStripe = multiply_stripe<T>;

#else

template <class T>
static constexpr MultiplyStripeKernel kMultiplyStripe = nullptr;

#endif

#pragma GCC push_options
#pragma GCC target("avx512vnni")

struct StripeOfInt8 {
  const MultiplyStripe& task;

  template <int rows>
  [[gnu::noinline]] void run(int64_t first_row) const {
    __m512i sums[rows][kStripeVectors];
    for (int i = 0; i < rows; ++i) {
      for (int v = 0; v < kStripeVectors; ++v) sums[i][v] = _mm512_setzero_si512();
    }
    const uint8_t* x = static_cast<const uint8_t*>(task.x) + first_row * task.x_stride;
    const auto* weight = static_cast<const int8_t*>(task.weight);
    const int64_t ahead = prefetch_distance(task, first_row);
    for (int64_t k = 0; k < task.in_features; k += 4, weight += 4 * kStripeColumns) {
      prefetch_stripe(weight, ahead);
      __m512i columns[kStripeVectors];
      for (int v = 0; v < kStripeVectors; ++v) {
        columns[v] = _mm512_loadu_si512(weight + v * 4 * kWidth);
      }
      const bool all = k + 4 <= task.in_features;
#pragma GCC unroll 8
      for (int i = 0; i < rows; ++i) {
        const uint8_t* from = x + i * task.x_stride + k;
        uint32_t elements = 0;
        if (all) {
          __builtin_memcpy(&elements, from, sizeof(elements));
        } else {
          for (int64_t j = k; j < task.in_features; ++j) {
            elements |= uint32_t{from[j - k]} << 8 * (j - k);
          }
        }
        const __m512i element = _mm512_set1_epi32(static_cast<int>(elements));
        for (int v = 0; v < kStripeVectors; ++v) {
          sums[i][v] = _mm512_dpbusd_epi32(sums[i][v], element, columns[v]);
        }
      }
    }
    for (int i = 0; i < rows; ++i) {
      int32_t* out = static_cast<int32_t*>(task.out) + (first_row + i) * task.out_stride;
      for (int v = 0; v < kStripeVectors; ++v) {
        const int64_t left = task.columns - v * kWidth;
        if (left <= 0) break;
        const auto some = static_cast<__mmask16>(left < kWidth ? (1u << left) - 1 : 0xffffu);
        _mm512_mask_storeu_epi32(out + v * kWidth, some, sums[i][v]);
      }
    }
  }
};

static void multiply_stripe_int8(const MultiplyStripe& task) {
  for_row_tiles<kMostStripeRows>(task.rows, StripeOfInt8{task});
}

#pragma GCC pop_options

static constexpr MultiplyStripeKernel kMultiplyStripeInt8 = multiply_stripe_int8;

#elif !defined(__AMX_BF16__)

template <class T>
static constexpr MultiplyStripeKernel kMultiplyStripe = nullptr;
static constexpr MultiplyStripeKernel kMultiplyStripeInt8 = nullptr;

#endif
