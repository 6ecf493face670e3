// Dense layers in float32. Included by kernels_body.h.
//
// A tile of sums stays in registers over all input features, which are added in their order. So the
// bits of a sum do not depend on the rows and columns that share its tile. Tiles are as tall as
// registers allow, because one vector of weights serves every row of a tile: weights come from the
// second-level cache, and reading them limits the speed of lower tiles.

// Vectors of a row of a tile: narrow vectors need more, so that an element of x serves enough of
// them.
static constexpr int kPanelVectors = kWidth == 4 && kRegisters == 32 ? 4 : 2;
static constexpr int kPanel = kPanelVectors * kWidth;
static_assert(kPackedColumns % kPanel == 0);
// With the weights and one element of x, this uses 29 to 31 of 32 registers, or 15 of 16.
static constexpr int kTileRows = kWidth == 16 ? 14 : 6;
// How many steps ahead weights are prefetched, in the panel itself.
static constexpr int kAhead = 64;
// Whether all tiles of a panel prefetch a part of the next one, instead of the last tile all of it:
// 10 to 20 % faster on Intel's processors with AMX, whose memory answers late, and 3 % slower on
// Zen 4.
#if defined(__AMX_BF16__)
static constexpr bool kTilesShareNext = true;
#else
static constexpr bool kTilesShareNext = false;
#endif

// sums[rows, kPanel] = x W^T + bias. `out` is where a later step writes these rows, which may be
// `sums` itself.
struct Tile {
  const float* x;
  int64_t x_stride;
  const float* weight;  // [in_features, kPanel]
  const float* ahead;   // weights that are prefetched
  int64_t ahead_step;   // by which that moves in each step
  int64_t in_features;
  float* sums;
  int64_t sums_stride;
  const float* out;
  int64_t out_stride;
};

template <int rows>
[[gnu::noinline]] static void multiply_tile(const Tile& tile, const Vec* bias) {
  // Weights go into the second-level cache, because the first would lose what it holds of x. Of few
  // rows it loses nothing, and they are multiplied as fast as weights come.
  constexpr int kCache = rows <= 4 ? 3 : 2;
  Vec sums[rows][kPanelVectors];
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kPanelVectors; ++v) sums[i][v] = bias[v];
  }
  const float* x = tile.x;
  const int64_t x_stride = tile.x_stride;
  const float* weight = tile.weight;
  const float* ahead = tile.ahead;
  const int64_t ahead_step = tile.ahead_step;
  const float* const weight_end = weight + tile.in_features * kPanel;
  // The lines that will be written come into the cache one row after another, evenly over all
  // steps. If all of them were missing at the end, the loads of the next tile would wait for them.
  const int64_t part = tile.in_features / rows * kPanel;
  for (int line = 0; line < rows; ++line) {
    for (int c = 0; c < kPanel; c += 16) {
      __builtin_prefetch(tile.out + line * tile.out_stride + c);
    }
    const float* const end = line + 1 < rows ? weight + part : weight_end;
    for (; weight < end; weight += kPanel, ahead += ahead_step, ++x) {
      Vec columns[kPanelVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kPanelVectors; ++v) columns[v] = load(weight + v * kWidth);
      for (int c = 0; c < kPanel; c += 16) __builtin_prefetch(ahead + c, 0, kCache);
#pragma GCC unroll 16
      for (int i = 0; i < rows; ++i) {
        const Vec element = splat(x[i * x_stride]);
#pragma GCC unroll 4
        for (int v = 0; v < kPanelVectors; ++v) sums[i][v] = fma(element, columns[v], sums[i][v]);
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kPanelVectors; ++v) {
      store(tile.sums + i * tile.sums_stride + v * kWidth, sums[i][v]);
    }
  }
}

template <int rows = kTileRows>
static inline void multiply_rows(int count, const Tile& tile, const Vec* bias) {
  if constexpr (rows > 1) {
    if (count < rows) return multiply_rows<rows - 1>(count, tile, bias);
  }
  multiply_tile<rows>(tile, bias);
}

// out = f(tile) for the first `columns` of the kPanel columns.
template <class F>
static inline void finish_tile(const float* tile, int rows, int columns, float* out, int64_t stride,
                               F f) {
  for (int i = 0; i < rows; ++i, tile += kPanel, out += stride) {
    for (int c = 0; c < columns; c += kWidth) {
      const Vec value = f(load(tile + c));
      if (c + kWidth <= columns) {
        store(out + c, value);
      } else {
        store_first(out + c, value, columns - c);
      }
    }
  }
}

static void multiply(const MultiplyRows& task) {
  // The heights of tiles differ by at most one row.
  const int64_t tiles = ceil_div(task.rows, kTileRows);
  float tile[kTileRows * kPanel];
  for (int64_t begin = 0; begin < task.columns; begin += kPanel) {
    const int columns =
        static_cast<int>(task.columns - begin < kPanel ? task.columns - begin : int64_t{kPanel});
    Vec bias[kPanelVectors] = {};
    for (int v = 0; v < kPanelVectors && task.bias != nullptr; ++v) {
      const int there = columns - v * kWidth;
      const float* from = task.bias + begin + v * kWidth;
      if (there > 0) bias[v] = there >= kWidth ? load(from) : load_first(from, there);
    }
    const bool direct = columns == kPanel && task.activation == Activation::kNone;
    const float* weight = task.weight + begin * task.in_features;
    int64_t row = 0;
    for (int64_t i = 0; i < tiles; ++i) {
      const auto rows = static_cast<int>((task.rows - row) / (tiles - i));
      const float* x = task.x + row * task.x_stride;
      float* out = task.out + row * task.out_stride + begin;
      const float* ahead = weight + kAhead * kPanel;
      int64_t ahead_step = kPanel;
      const float* const next = weight + task.in_features * kPanel;
      if (kTilesShareNext && tiles > 1 && tiles <= kPanel / 2) {
        ahead = next + i * task.in_features * kPanel / tiles;
        ahead_step = kPanel / tiles;
      } else if (i > 0 && i + 1 == tiles) {
        ahead = next;  // this tile finds its own weights in the cache
      }
      multiply_rows(
          rows,
          {x, task.x_stride, weight, ahead, ahead_step, task.in_features, direct ? out : tile,
           direct ? task.out_stride : int64_t{kPanel}, out, task.out_stride},
          bias);
      if (!direct) {
        with_activation(task.activation,
                        [&](auto f) { finish_tile(tile, rows, columns, out, task.out_stride, f); });
      }
      row += rows;
    }
  }
}

// Packs columns into panels [in_features, kPanel], with zeros after the last column.
static void pack_columns(const PackColumns& task) {
  for (int64_t begin = 0; begin < task.columns; begin += kPanel) {
    float* to = task.packed + begin * task.in_features;
    for (int64_t k = 0; k < task.in_features; k += kWidth) {
      const auto count =
          static_cast<int>(task.in_features - k < kWidth ? task.in_features - k : int64_t{kWidth});
      for (int v = 0; v < kPanelVectors; ++v) {
        Vec lanes[kWidth];
        for (int i = 0; i < kWidth; ++i) {
          const int64_t column = begin + v * kWidth + i;
          const float* from = task.weight + column * task.in_features + k;
          lanes[i] = column >= task.columns ? Vec{}
                     : count == kWidth      ? load(from)
                                            : load_first(from, count);
        }
        transpose(lanes);
        for (int i = 0; i < count; ++i) store(to + (k + i) * kPanel + v * kWidth, lanes[i]);
      }
    }
  }
}
