// Dense layers in bfloat16 and int8 (MultiplyPanels in kernels.h). Included by kernels_body.h.
//
// A tile of sums stays in registers over all input features, which come in pieces of kPieceBytes of
// every row; a piece meets 16 vectors of weights of each panel. Weights follow one another in the
// order in which they are read. Sums of a column take their products in the order of features, by
// the same instructions in every tile, so that the bits of a sum depend on its own row and column
// alone.

using MultiplyPanelsKernel = void (*)(const MultiplyPanels&);

#if defined(__ARM_NEON)

using Piece = uint8_t __attribute__((vector_size(kPieceBytes)));

static constexpr int64_t kPanelStep = kPanelColumns * kPieceBytes;  // bytes that a piece meets

// The first `count` bytes, and zeros.
static inline Piece load_piece(const uint8_t* from, int64_t count) {
  Piece piece = {};
  if (count >= kPieceBytes) {
    __builtin_memcpy(&piece, from, sizeof(piece));
  } else {
    uint8_t bytes[kPieceBytes] = {};
    for (int64_t i = 0; i < count; ++i) bytes[i] = from[i];
    __builtin_memcpy(&piece, bytes, sizeof(piece));
  }
  return piece;
}

template <int... numbers>
struct Numbers {};

// Calls f with each of the numbers as its template argument.
template <class F, int... numbers>
[[gnu::always_inline]] static inline void for_numbers(Numbers<numbers...>, F f) {
  (f.template operator()<numbers>(), ...);
}

// Tiles of instructions that add products of a group of 4 bytes to each lane, which is a column.
// `Products` says how.
template <class Products>
struct LaneTiles {
  using Element = typename Products::Element;
  using Sum = typename Products::Sum;
  static constexpr int64_t kGroupBytes = 4;
  static constexpr int kMostRows = Products::kMostRows;
  static constexpr int kVectors = static_cast<int>(kPanelColumns) / 4;
  static constexpr int kSkinnyRows = kMostRows / 2;

  template <int rows, int panels>
  struct Tile {
    Sum sums[rows][panels * kVectors] = {};

    [[gnu::always_inline]] inline void add(const uint8_t* x, int64_t x_stride, int64_t count,
                                           const uint8_t* weight, int64_t apart) {
      Products of_rows[rows];
#pragma GCC unroll 8
      for (int i = 0; i < rows; ++i) of_rows[i] = Products(load_piece(x + i * x_stride, count));
      for_numbers(Numbers<0, 1, 2, 3>{}, [&]<int group>() {
#pragma GCC unroll 8
        for (int v = 0; v < panels * kVectors; ++v) {
          const typename Products::Weights columns(weight + v / kVectors * apart +
                                                   (group * kVectors + v % kVectors) * 16);
#pragma GCC unroll 8
          for (int i = 0; i < rows; ++i) {
            sums[i][v] = of_rows[i].template add<group>(sums[i][v], columns);
          }
        }
      });
    }
    // Four columns of a row.
    Sum row(int i, int v) const { return sums[i][v]; }
  };
};

// bfloat16 by multiplications of float32, feature after feature.
struct ConvertedProducts {
  using Element = bfloat16;
  using Sum = Vec;
  static constexpr int kMostRows = 4;

  struct Weights {
    explicit Weights(const uint8_t* from) {
      const IntVec both = load_bytes(from);
      first = (Vec)(both << 16);
      second = (Vec)(both & splat_int(static_cast<int32_t>(0xffff0000u)));
    }
    Vec first, second;
  };

  ConvertedProducts() = default;
  explicit ConvertedProducts(Piece piece)
      : even((Vec)((IntVec)piece << 16)),
        odd((Vec)((IntVec)piece & splat_int(static_cast<int32_t>(0xffff0000u)))) {}
  template <int group>
  Vec add(Vec sum, const Weights& columns) const {
    return vfmaq_laneq_f32(vfmaq_laneq_f32(sum, columns.first, even, group), columns.second, odd,
                           group);
  }
  Vec even, odd;
};

// int8. x is moved to -128 to 127, which finish_sums makes up for.
struct ByteProducts {
  using Element = uint8_t;
  using Sum = IntVec;
  static constexpr int32_t kMoved = 128;

  struct Weights {
    explicit Weights(const uint8_t* from) : bytes(load_bytes(from)) {}
    IntVec bytes;
  };

  ByteProducts() = default;
  explicit ByteProducts(Piece piece) : bytes((IntVec)(piece ^ 0x80)) {}
#if defined(__ARM_FEATURE_DOTPROD)
  static constexpr int kMostRows = 6;
  template <int group>
  IntVec add(IntVec sum, const Weights& columns) const {
    return vdotq_laneq_s32(sum, (int8x16_t)columns.bytes, (int8x16_t)bytes, group);
  }
#else
  static constexpr int kMostRows = 4;
  template <int group>
  IntVec add(IntVec sum, const Weights& columns) const {
    return add_byte_products(sum, columns.bytes, splat_int(bytes[group]));
  }
#endif
  IntVec bytes;
};

// Tiles of instructions that add a product of 2 rows and 2 columns, over a group of 8 bytes, to a
// vector of 4 sums: row by row, two columns each.
template <class Products>
struct MatrixTiles {
  using Element = typename Products::Element;
  using Sum = typename Products::Sum;
  static constexpr int64_t kGroupBytes = 8;
  static constexpr int kMostRows = 6;
  static constexpr int kVectors = static_cast<int>(kPanelColumns) / 2;
  static constexpr int kSkinnyRows = 2;

  template <int rows, int panels>
  struct Tile {
    static constexpr int kPairs = ceil_div(rows, 2);
    Sum sums[kPairs][panels * kVectors] = {};

    [[gnu::always_inline]] inline void add(const uint8_t* x, int64_t x_stride, int64_t count,
                                           const uint8_t* weight, int64_t apart) {
      uint64x2_t of_pairs[kPairs][2];
#pragma GCC unroll 4
      for (int p = 0; p < kPairs; ++p) {
        // A row without a neighbour is its own.
        const int other = 2 * p + 1 < rows ? 2 * p + 1 : 2 * p;
        const auto first = (uint64x2_t)load_piece(x + 2 * p * x_stride, count);
        const auto second = (uint64x2_t)load_piece(x + other * x_stride, count);
        of_pairs[p][0] = vzip1q_u64(first, second);
        of_pairs[p][1] = vzip2q_u64(first, second);
      }
#pragma GCC unroll 2
      for (int group = 0; group < 2; ++group) {
#pragma GCC unroll 16
        for (int v = 0; v < panels * kVectors; ++v) {
          const IntVec columns =
              load_bytes(weight + v / kVectors * apart + (group * kVectors + v % kVectors) * 16);
#pragma GCC unroll 4
          for (int p = 0; p < kPairs; ++p) {
            sums[p][v] = Products::add(sums[p][v], of_pairs[p][group], columns);
          }
        }
      }
    }
    Sum row(int i, int v) const {
      const auto first = (uint64x2_t)sums[i / 2][2 * v];
      const auto second = (uint64x2_t)sums[i / 2][2 * v + 1];
      return (Sum)(i % 2 == 0 ? vzip1q_u64(first, second) : vzip2q_u64(first, second));
    }
  };
};

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)

struct Bfloat16Products {
  using Element = bfloat16;
  using Sum = Vec;
  static inline Vec add(Vec sums, uint64x2_t rows, IntVec columns) {
    return vbfmmlaq_f32(sums, (bfloat16x8_t)rows, (bfloat16x8_t)columns);
  }
};
using Bfloat16Tiles = MatrixTiles<Bfloat16Products>;

#else

using Bfloat16Tiles = LaneTiles<ConvertedProducts>;

#endif

#if defined(__ARM_FEATURE_MATMUL_INT8)

struct Int8Products {
  using Element = uint8_t;
  using Sum = IntVec;
  static constexpr int32_t kMoved = 0;
  static inline IntVec add(IntVec sums, uint64x2_t rows, IntVec columns) {
    return vusmmlaq_s32(sums, (uint8x16_t)rows, (int8x16_t)columns);
  }
};
using Int8Tiles = MatrixTiles<Int8Products>;
static constexpr int32_t kMoved = Int8Products::kMoved;

#else

using Int8Tiles = LaneTiles<ByteProducts>;
static constexpr int32_t kMoved = ByteProducts::kMoved;

#endif

static_assert(Bfloat16Tiles::kGroupBytes == Int8Tiles::kGroupBytes);

template <class Tiles>
static inline int64_t row_bytes(const MultiplyPanels& task) {
  return task.in_features * static_cast<int64_t>(sizeof(typename Tiles::Element));
}

// The bytes of a panel of a weight whose rows have so many bytes.
static inline int64_t panel_bytes(int64_t bytes) {
  return ceil_div(bytes, kPieceBytes) * kPanelStep;
}

// sums[rows, panels * kPanelColumns] = x W^T
template <class Tiles, int rows, int panels>
[[gnu::noinline]] static void sum_panels(const MultiplyPanels& task, const uint8_t* x,
                                         const uint8_t* weight, typename Tiles::Sum* sums) {
  const int64_t bytes = row_bytes<Tiles>(task);
  const int64_t stride = task.x_stride * static_cast<int64_t>(sizeof(typename Tiles::Element));
  const int64_t apart = panel_bytes(bytes);
  typename Tiles::template Tile<rows, panels> tile;
  int64_t done = 0;
  for (; done + kPieceBytes <= bytes; done += kPieceBytes, weight += kPanelStep) {
    tile.add(x + done, stride, kPieceBytes, weight, apart);
  }
  if (done < bytes) tile.add(x + done, stride, bytes - done, weight, apart);
  constexpr int kOfRow = panels * static_cast<int>(kPanelColumns) / 4;
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < kOfRow; ++v) sums[i * kOfRow + v] = tile.row(i, v);
  }
}

// Two panels at once for few rows, which leave registers for the sums of both.
template <class Tiles, int panels>
static constexpr int kTallest = panels == 2 ? Tiles::kSkinnyRows : Tiles::kMostRows;

// One tile of `count` rows; finish(row, column, sums) takes four sums of a row.
template <class Tiles, int panels, int rows = kTallest<Tiles, panels>, class F>
static inline void multiply_panel_tile(int count, const MultiplyPanels& task, int64_t first_row,
                                       int64_t begin, const uint8_t* weight, F finish) {
  if constexpr (rows > 1) {
    if (count < rows) {
      return multiply_panel_tile<Tiles, panels, rows - 1>(count, task, first_row, begin, weight,
                                                          finish);
    }
  }
  const auto* x = static_cast<const typename Tiles::Element*>(task.x) + first_row * task.x_stride;
  constexpr int kColumns = panels * static_cast<int>(kPanelColumns);
  typename Tiles::Sum sums[rows * kColumns / 4];
  sum_panels<Tiles, rows, panels>(task, reinterpret_cast<const uint8_t*>(x), weight, sums);
  for (int i = 0; i < rows; ++i) {
    for (int c = 0; c < kColumns && begin + c < task.columns; c += 4) {
      finish(first_row + i, begin + c, sums[(i * kColumns + c) / 4]);
    }
  }
}

// All rows, in tiles whose heights differ by at most one.
template <class Tiles, int panels, class F>
static inline void multiply_panel_tiles(const MultiplyPanels& task, int64_t begin,
                                        const uint8_t* weight, F finish) {
  constexpr int kMost = kTallest<Tiles, panels>;
  const int64_t tiles = ceil_div(task.rows, kMost);
  int64_t row = 0;
  for (int64_t i = 0; i < tiles; ++i) {
    const auto count = static_cast<int>((task.rows - row) / (tiles - i));
    multiply_panel_tile<Tiles, panels>(count, task, row, begin, weight, finish);
    row += count;
  }
}

template <class Tiles, class F>
static inline void multiply_all_panels(const MultiplyPanels& task, F finish) {
  const int64_t bytes = row_bytes<Tiles>(task);
  const auto* weight = static_cast<const uint8_t*>(task.weight);
  for (int64_t begin = 0; begin < task.columns;) {
    const bool two = task.rows <= Tiles::kSkinnyRows && task.columns - begin > kPanelColumns;
    if (two) {
      multiply_panel_tiles<Tiles, 2>(task, begin, weight, finish);
    } else {
      multiply_panel_tiles<Tiles, 1>(task, begin, weight, finish);
    }
    begin += two ? 2 * kPanelColumns : kPanelColumns;
    weight += (two ? 2 : 1) * panel_bytes(bytes);
  }
}

template <class T>
static void multiply_panels(const MultiplyPanels& task) {
  with_activation(task.activation, [&](auto activation) {
    multiply_all_panels<Bfloat16Tiles>(task, [&](int64_t row, int64_t column, Vec sum) {
      T* out = static_cast<T*>(task.out) + row * task.out_stride + column;
      const int64_t there = task.columns - column;
      if (there >= kWidth) {
        if (task.bias != nullptr) sum += load(task.bias + column);
        return store(out, activation(sum));
      }
      const auto some = static_cast<int>(there);
      if (task.bias != nullptr) sum += load_first(task.bias + column, some);
      store_first(out, activation(sum), some);
    });
  });
}

static void multiply_panels_int8(const MultiplyPanels& task) {
  multiply_all_panels<Int8Tiles>(task, [&](int64_t row, int64_t column, IntVec sum) {
    auto* out = static_cast<int32_t*>(task.out) + row * task.out_stride + column;
    const int64_t there = task.columns - column;
    if (there >= kWidth) {
      if (kMoved != 0) sum += load_int(task.sums + column) * kMoved;
      __builtin_memcpy(out, &sum, sizeof(sum));
      return;
    }
    for (int i = 0; i < there; ++i) out[i] = sum[i] + kMoved * task.sums[column + i];
  });
}

static constexpr int64_t kPanelGroupBytes = Int8Tiles::kGroupBytes;
template <class T>
static constexpr MultiplyPanelsKernel kMultiplyPanels = multiply_panels<T>;
static constexpr MultiplyPanelsKernel kMultiplyPanelsInt8 = multiply_panels_int8;

#else

static constexpr int64_t kPanelGroupBytes = 0;
template <class T>
static constexpr MultiplyPanelsKernel kMultiplyPanels = nullptr;
static constexpr MultiplyPanelsKernel kMultiplyPanelsInt8 = nullptr;

#endif
