// Dense layers of a few rows in bfloat16 and int8, a stripe of columns at a time (MultiplyStripe in
// kernels.h). Included by kernels_body.h.
//
// The weights of a stripe lie one after another in the order in which they are read, so that they
// stream from memory. Pieces of it that fit the first-level cache are multiplied by one tile of
// rows after another, whose sums are in registers during a piece.

using MultiplyStripeKernel = void (*)(const MultiplyStripe&);

#if defined(__AVX512F__)

// Bytes that are prefetched ahead of what is read, across the ends of the hardware prefetcher's
// pages and of the stripe.
static constexpr int64_t kStripeAhead = 8192;
// Input features of a piece, in groups of 2 or 4.
static constexpr int64_t kPieceGroups = 32;
// Vectors of sums in a row of a stripe.
static constexpr int kStripeVectors = static_cast<int>(kStripeColumns) / kWidth;

// Rows that are multiplied together, [begin, begin + count), and which of the four cache lines of a
// group of input features they prefetch: tiles of rows share that work, so that weights come from
// memory all the time.
struct RowTile {
  int64_t begin;
  int count;
  int first_line, end_line;
};

// Calls body(tile) for tiles of at most `most` rows whose heights differ by at most one.
template <int most, class Body>
static inline void for_row_tiles(int64_t rows, const Body& body) {
  const auto tiles = static_cast<int>((rows + most - 1) / most);
  int64_t row = 0;
  for (int i = 0; i < tiles; ++i) {
    const auto count = static_cast<int>((rows - row) / (tiles - i));
    body(RowTile{row, count, 4 * i / tiles, 4 * (i + 1) / tiles});
    row += count;
  }
}

static inline void prefetch_lines(const void* weight, const RowTile& tile) {
  const char* at = static_cast<const char*>(weight) + kStripeAhead;
  for (int line = tile.first_line; line < tile.end_line; ++line) __builtin_prefetch(at + line * 64);
}

// Calls multiply.run<count>(...) for the number of rows of the tile.
template <class Multiply, int rows = Multiply::kMostRows, class... Arguments>
static inline void with_row_count(const RowTile& tile, Arguments&&... arguments) {
  if constexpr (rows > 1) {
    if (tile.count < rows) return with_row_count<Multiply, rows - 1>(tile, arguments...);
  }
  Multiply::template run<rows>(tile, arguments...);
}

#if defined(__AVX512BF16__)

// Two neighbouring elements of x in every lane; of the last odd one its neighbour is zero.
static inline __m512i splat_pair(const bfloat16* x, bool both) {
  uint32_t pair = *x;
  if (both) __builtin_memcpy(&pair, x, sizeof(pair));
  return _mm512_set1_epi32(static_cast<int>(pair));
}

#if defined(__AMX_BF16__)

// The sums of AMX tiles, by plain vectors: of every 32 input features those with an even and those
// with an odd number are summed apart, each product added with one rounding, and then the sum of
// the two is added. (TDPBF16PS in Intel's Software Developer's Manual. Subnormal numbers count as
// zero there: see multiply_stripe.)
struct StripeSums {
  static constexpr int kVectors = kStripeVectors / 2;  // of columns that a tile of sums has
  static constexpr int kMostRows = 4;
  static constexpr int64_t kTileFeatures = 32;

  // sums += x W^T of input features [first, end), which begin a tile
  template <int rows>
  [[gnu::noinline]] static void run(const RowTile& tile, const MultiplyStripe& task,
                                    const bfloat16* weight, int64_t first, int64_t end,
                                    Vec (*sums)[kVectors]) {
    const int64_t x_stride = task.x_stride;
    const bfloat16* x = static_cast<const bfloat16*>(task.x) + tile.begin * x_stride;
    sums += tile.begin;
    for (int64_t begin = first; begin < end; begin += kTileFeatures) {
      const int64_t stop = begin + kTileFeatures < end ? begin + kTileFeatures : end;
      Vec even[rows][kVectors] = {};
      Vec odd[rows][kVectors] = {};
      for (int64_t k = begin; k < stop; k += 2) {
        const bfloat16* at = weight + k * kStripeColumns;
        prefetch_lines(at, tile);
        Vec low[kVectors], high[kVectors];
        for (int v = 0; v < kVectors; ++v) {
          const auto both = (IntVec)_mm512_loadu_si512(at + v * 2 * kWidth);
          low[v] = (Vec)(both << 16);
          high[v] = (Vec)(both & splat_int(static_cast<int>(0xffff0000u)));
        }
#pragma GCC unroll 4
        for (int i = 0; i < rows; ++i) {
          const auto pair = (IntVec)splat_pair(x + i * x_stride + k, k + 1 < stop);
          const Vec first_of_pair = (Vec)(pair << 16);
          const Vec second = (Vec)(pair & splat_int(static_cast<int>(0xffff0000u)));
          for (int v = 0; v < kVectors; ++v) even[i][v] = fma(first_of_pair, low[v], even[i][v]);
          for (int v = 0; v < kVectors; ++v) odd[i][v] = fma(second, high[v], odd[i][v]);
        }
      }
      for (int i = 0; i < rows; ++i) {
        for (int v = 0; v < kVectors; ++v) sums[i][v] += even[i][v] + odd[i][v];
      }
    }
  }
};

#else

// The sums of VDPBF16PS, pair after pair.
struct StripeSums {
  static constexpr int kVectors = kStripeVectors;
  static constexpr int kMostRows = 6;

  template <int rows>
  [[gnu::noinline]] static void run(const RowTile& tile, const MultiplyStripe& task,
                                    const bfloat16* weight, int64_t first, int64_t end,
                                    Vec (*all)[kVectors]) {
    const int64_t x_stride = task.x_stride;
    const bfloat16* x = static_cast<const bfloat16*>(task.x) + tile.begin * x_stride;
    Vec sums[rows][kVectors];
    for (int i = 0; i < rows; ++i) {
      for (int v = 0; v < kVectors; ++v) sums[i][v] = all[tile.begin + i][v];
    }
    for (int64_t k = first; k < end; k += 2) {
      const bfloat16* at = weight + k * kStripeColumns;
      prefetch_lines(at, tile);
      __m512i columns[kVectors];
      for (int v = 0; v < kVectors; ++v) columns[v] = _mm512_loadu_si512(at + v * 2 * kWidth);
#pragma GCC unroll 8
      for (int i = 0; i < rows; ++i) {
        const __m512i pair = splat_pair(x + i * x_stride + k, k + 1 < end);
        for (int v = 0; v < kVectors; ++v) {
          sums[i][v] =
              (Vec)_mm512_dpbf16_ps((__m512)sums[i][v], (__m512bh)pair, (__m512bh)columns[v]);
        }
      }
    }
    for (int i = 0; i < rows; ++i) {
      for (int v = 0; v < kVectors; ++v) all[tile.begin + i][v] = sums[i][v];
    }
  }
};

#endif

// out = sums + bias, for columns from `begin` on
template <class T>
static inline void write_sums(const MultiplyStripe& task, int64_t begin,
                              const Vec (*sums)[StripeSums::kVectors]) {
  for (int v = 0; v < StripeSums::kVectors; ++v) {
    const int64_t column = begin + v * kWidth;
    const auto count =
        static_cast<int>(task.columns - column < kWidth ? task.columns - column : int64_t{kWidth});
    if (count <= 0) return;
    Vec bias = {};
    if (task.bias != nullptr) {
      bias = count == kWidth ? load(task.bias + column) : load_first(task.bias + column, count);
    }
    for (int64_t row = 0; row < task.rows; ++row) {
      T* out = static_cast<T*>(task.out) + row * task.out_stride + column;
      const Vec sum = task.bias != nullptr ? sums[row][v] + bias : sums[row][v];
      if (count == kWidth) {
        store(out, sum);
      } else {
        store_first(out, sum, count);
      }
    }
  }
}

template <class T>
static void multiply_columns(const MultiplyStripe& task, int64_t begin) {
  constexpr int64_t kPiece = 2 * kPieceGroups;
  const auto* weight = static_cast<const bfloat16*>(task.weight) + 2 * begin;
  Vec whole[kFewRows][StripeSums::kVectors];
  Vec sums[kFewRows][StripeSums::kVectors];
  for (int64_t chunk = 0; chunk < task.in_features; chunk += task.chunk) {
    const int64_t left = task.in_features - chunk;
    const int64_t end = chunk + (left < task.chunk ? left : task.chunk);
    for (int64_t row = 0; row < task.rows; ++row) {
      for (int v = 0; v < StripeSums::kVectors; ++v) sums[row][v] = Vec{};
    }
    for (int64_t k = chunk; k < end; k += kPiece) {
      const int64_t stop = k + kPiece < end ? k + kPiece : end;
      for_row_tiles<StripeSums::kMostRows>(task.rows, [&](const RowTile& tile) {
        with_row_count<StripeSums>(tile, task, weight, k, stop, sums);
      });
    }
    for (int64_t row = 0; row < task.rows; ++row) {
      for (int v = 0; v < StripeSums::kVectors; ++v) {
        whole[row][v] = chunk == 0 ? sums[row][v] : whole[row][v] + sums[row][v];
      }
    }
  }
  write_sums<T>(task, begin, whole);
}

template <class T>
static void multiply_stripe(const MultiplyStripe& task) {
#if defined(__AMX_BF16__)
  constexpr unsigned kZeroSubnormals = 0x8040;
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | kZeroSubnormals);
#endif
  constexpr int kColumns = StripeSums::kVectors * kWidth;
  for (int64_t begin = 0; begin < task.columns; begin += kColumns) {
    multiply_columns<T>(task, begin);
  }
#if defined(__AMX_BF16__)
  _mm_setcsr(before);
#endif
}

template <class T>
static constexpr MultiplyStripeKernel kMultiplyStripe = multiply_stripe<T>;

#else

template <class T>
static constexpr MultiplyStripeKernel kMultiplyStripe = nullptr;

#endif

#pragma GCC push_options
#pragma GCC target("avx512vnni")

// Four neighbouring elements of a row in every lane, of which those from `count` on are zero.
static inline __m512i splat_bytes(const uint8_t* x, int64_t count) {
  uint32_t elements = 0;
  if (count >= 4) {
    __builtin_memcpy(&elements, x, sizeof(elements));
  } else {
    for (int64_t i = 0; i < count; ++i) elements |= uint32_t{x[i]} << 8 * i;
  }
  return _mm512_set1_epi32(static_cast<int>(elements));
}

struct Int8Sums {
  static constexpr int kMostRows = 6;

  // sums += x W^T of input features [first, end)
  template <int rows>
  [[gnu::noinline]] static void run(const RowTile& tile, const MultiplyStripe& task, int64_t first,
                                    int64_t end, __m512i (*all)[kStripeVectors]) {
    const uint8_t* x = static_cast<const uint8_t*>(task.x) + tile.begin * task.x_stride;
    const int8_t* weight = static_cast<const int8_t*>(task.weight) + first * kStripeColumns;
    __m512i sums[rows][kStripeVectors];
    for (int i = 0; i < rows; ++i) {
      for (int v = 0; v < kStripeVectors; ++v) sums[i][v] = all[tile.begin + i][v];
    }
    for (int64_t k = first; k < end; k += 4, weight += 4 * kStripeColumns) {
      prefetch_lines(weight, tile);
      __m512i columns[kStripeVectors];
      for (int v = 0; v < kStripeVectors; ++v) {
        columns[v] = _mm512_loadu_si512(weight + v * 4 * kWidth);
      }
#pragma GCC unroll 8
      for (int i = 0; i < rows; ++i) {
        const __m512i element = splat_bytes(x + i * task.x_stride + k, task.in_features - k);
        for (int v = 0; v < kStripeVectors; ++v) {
          sums[i][v] = _mm512_dpbusd_epi32(sums[i][v], element, columns[v]);
        }
      }
    }
    for (int i = 0; i < rows; ++i) {
      for (int v = 0; v < kStripeVectors; ++v) all[tile.begin + i][v] = sums[i][v];
    }
  }
};

static void multiply_stripe_int8(const MultiplyStripe& task) {
  constexpr int64_t kPiece = 4 * kPieceGroups;
  __m512i sums[kFewRows][kStripeVectors];
  for (int64_t row = 0; row < task.rows; ++row) {
    for (int v = 0; v < kStripeVectors; ++v) sums[row][v] = _mm512_setzero_si512();
  }
  for (int64_t k = 0; k < task.in_features; k += kPiece) {
    const int64_t stop = k + kPiece < task.in_features ? k + kPiece : task.in_features;
    for_row_tiles<Int8Sums::kMostRows>(task.rows, [&](const RowTile& tile) {
      with_row_count<Int8Sums>(tile, task, k, stop, sums);
    });
  }
  for (int64_t row = 0; row < task.rows; ++row) {
    int32_t* out = static_cast<int32_t*>(task.out) + row * task.out_stride;
    for (int v = 0; v < kStripeVectors; ++v) {
      const int64_t left = task.columns - v * kWidth;
      if (left <= 0) break;
      const auto some = static_cast<__mmask16>(left < kWidth ? (1u << left) - 1 : 0xffffu);
      _mm512_mask_storeu_epi32(out + v * kWidth, some, sums[row][v]);
    }
  }
}

#pragma GCC pop_options

static constexpr MultiplyStripeKernel kMultiplyStripeInt8 = multiply_stripe_int8;

#else

template <class T>
static constexpr MultiplyStripeKernel kMultiplyStripe = nullptr;
static constexpr MultiplyStripeKernel kMultiplyStripeInt8 = nullptr;

#endif
