// Dense layers of a few rows in bfloat16 and int8 by AMX (MultiplyStripe in kernels.h), a stripe of
// columns at a time. TDPBF16PS and TDPBUSD (Intel's instruction set reference) multiply up to 16
// rows of 64 bytes by 16 columns whose pairs or fours of input features lie side by side, which is
// how a stripe lies. All rows are in one tile, so that a weight is read once, and a tile has no
// more rows than the batch: its products take as many cycles. Included by kernels_body.h.

#if defined(__AMX_BF16__)

// Bytes that are prefetched ahead of what is read, into the first-level cache: as many as one step
// reads.
static constexpr int64_t kTilesAhead = 4096;
// Bytes of a row of a tile, and of the columns of a stripe that have one group of input features.
static constexpr int64_t kTileBytes = 64;
static constexpr int64_t kStripeGroupBytes = kStripeColumns * 4;

// Tiles 0 to 3 hold the sums of 16 columns each, 4 the rows, 5 to 7 weights.
static inline void configure_stripe_tiles(int64_t rows) {
  alignas(64) uint8_t config[64] = {1};  // palette
  for (int tile = 0; tile < 8; ++tile) {
    config[16 + 2 * tile] = kTileBytes;
    config[48 + tile] = static_cast<uint8_t>(tile < 5 ? rows : kTileSide);
  }
  memory_is_written();
  _tile_loadconfig(config);
}

// Adds the products of 64 bytes of every row. `In` is an element of x.
template <class In>
static inline void multiply_stripe_tiles(const void* x, int64_t x_stride, const char* weight) {
  for (int line = 0; line < kTileSide * 4; ++line) {
    __builtin_prefetch(weight + kTilesAhead + line * kTileBytes, 0, 3);
  }
  _tile_loadd(4, x, x_stride);
  _tile_loadd(5, weight, kStripeGroupBytes);
  _tile_loadd(6, weight + kTileBytes, kStripeGroupBytes);
  _tile_loadd(7, weight + 2 * kTileBytes, kStripeGroupBytes);
  if constexpr (sizeof(In) == 2) {
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(5, weight + 3 * kTileBytes, kStripeGroupBytes);
    _tile_dpbf16ps(1, 4, 6);
    _tile_dpbf16ps(2, 4, 7);
    _tile_dpbf16ps(3, 4, 5);
  } else {
    _tile_dpbusd(0, 4, 5);
    _tile_loadd(5, weight + 3 * kTileBytes, kStripeGroupBytes);
    _tile_dpbusd(1, 4, 6);
    _tile_dpbusd(2, 4, 7);
    _tile_dpbusd(3, 4, 5);
  }
}

// Sums of input features [first, end), which begin a tile, into sums [rows, kStripeColumns].
template <class In>
static inline void sum_stripe_tiles(const MultiplyStripe& task, int64_t first, int64_t end,
                                    void* sums) {
  constexpr int64_t kFeatures = kTileBytes / sizeof(In);
  const auto* x = static_cast<const In*>(task.x);
  const int64_t x_stride = task.x_stride * static_cast<int64_t>(sizeof(In));
  const char* weight = static_cast<const char*>(task.weight) +
                       first * static_cast<int64_t>(sizeof(In)) * kStripeColumns;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  int64_t k = first;
  for (; k + kFeatures <= end; k += kFeatures, weight += kTileBytes * kStripeColumns) {
    multiply_stripe_tiles<In>(x + k, x_stride, weight);
  }
  if (k < end) {
    // Weights are zero beyond the last input feature; x may end there, or hold infinities.
    alignas(64) In rest[kSkinnyRows][kFeatures] = {};
    for (int64_t row = 0; row < task.rows; ++row) {
      __builtin_memcpy(rest[row], x + row * task.x_stride + k,
                       static_cast<size_t>(end - k) * sizeof(In));
    }
    memory_is_written();
    multiply_stripe_tiles<In>(rest, kTileBytes, weight);
  }
  auto* to = static_cast<char*>(sums);
  _tile_stored(0, to, kStripeGroupBytes);
  _tile_stored(1, to + kTileBytes, kStripeGroupBytes);
  _tile_stored(2, to + 2 * kTileBytes, kStripeGroupBytes);
  _tile_stored(3, to + 3 * kTileBytes, kStripeGroupBytes);
  memory_is_written();
}

template <class T>
static void multiply_stripe(const MultiplyStripe& task) {
  alignas(64) float whole[kSkinnyRows][kStripeColumns];
  alignas(64) float part[kSkinnyRows][kStripeColumns];
  configure_stripe_tiles(task.rows);
  for (int64_t first = 0; first < task.in_features; first += task.chunk) {
    const int64_t left = task.in_features - first;
    const int64_t end = first + (left < task.chunk ? left : task.chunk);
    sum_stripe_tiles<bfloat16>(task, first, end, first == 0 ? whole : part);
    if (first == 0) continue;
    for (int64_t row = 0; row < task.rows; ++row) {
      for (int64_t column = 0; column < kStripeColumns; column += kWidth) {
        store(&whole[row][column], load(&whole[row][column]) + load(&part[row][column]));
      }
    }
  }
  _tile_release();
  for (int64_t row = 0; row < task.rows; ++row) {
    for (int64_t column = 0; column < task.columns; column += kWidth) {
      finish_stripe<T>(task, row, column, load(&whole[row][column]));
    }
  }
}

static void multiply_stripe_int8(const MultiplyStripe& task) {
  alignas(64) int32_t sums[kSkinnyRows][kStripeColumns];
  configure_stripe_tiles(task.rows);
  sum_stripe_tiles<uint8_t>(task, 0, task.in_features, sums);
  _tile_release();
  for (int64_t row = 0; row < task.rows; ++row) {
    int32_t* out = static_cast<int32_t*>(task.out) + row * task.out_stride;
    for (int64_t column = 0; column < task.columns; column += kWidth) {
      const int64_t left = task.columns - column;
      const auto some = static_cast<__mmask16>(left < kWidth ? (1u << left) - 1 : 0xffffu);
      _mm512_mask_storeu_epi32(out + column, some, _mm512_load_si512(&sums[row][column]));
    }
  }
}

template <class T>
static constexpr MultiplyStripeKernel kMultiplyStripe = multiply_stripe<T>;
static constexpr MultiplyStripeKernel kMultiplyStripeInt8 = multiply_stripe_int8;

#endif
