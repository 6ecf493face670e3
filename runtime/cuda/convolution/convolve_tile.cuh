// Heads of compressed convolutional attention by tensor cores: two taps in both convolutions.
//
// The second convolution is a matrix product for each head, [rows, 2 D] times [2 D, D]. Its left
// operand, the first convolution at both taps, is computed where it is needed: in the registers of
// mma.sync. To that end the columns of a product are renamed. In every 32 columns, a lane has the
// eight that begin at 8 (lane % 4), on the side of the inputs as on that of the outputs, so that
// all it reads of latents and writes of heads are vectors of 16 bytes; and of its warp's 32 rows it
// has the four that begin at 4 (lane / 4), so that six rows of latents give it all taps. Weights
// lie in shared memory in the order in which lanes take them.
//
// A row's bits do not depend on the rows beside it, nor on the number of warps that share its
// columns: squares are summed over 32 columns first, then over these sums in ascending order.
#pragma once

#include "cuda/attention/mma_sm80.cuh"
#include "cuda/convolution/convolve_weights.cuh"
#include "cuda/convolution/latent_rows.cuh"
#include "cuda/rows/rotation.cuh"

namespace packhorse::cuda {

/// kWarps warps share the columns of a tile of 32 rows.
template <class T, int D, int kWarps>
struct ConvolveTile {
  static constexpr int kThreads = ConvolveWeights<T, D>::kThreads;
  static constexpr int kRows = 32;                       // of a tile
  static constexpr int kTiles = kThreads / 32 / kWarps;  // of a block at once
  static constexpr int kPanels = D / 32;                 // 32 columns each
  static constexpr int kOwn = kPanels / kWarps;          // panels of a warp
  static constexpr bool kSplit = kWarps > 1;
  /// Of each row of a tile, where sequences begin in it or right before it: the row of the token
  /// before, that of the one before that, and the delayed values. Null stands for none. And where
  /// the state keeps it, if it does.
  struct Before {
    const T* rows[kRows][3];
    T* kept[kRows];
  };
  struct Shared {
    ConvolveWeights<T, D> weights;
    Before before[kThreads / 32];
    // What the warps of a tile tell one another.
    uint4 exchanged[kSplit ? kTiles : 1][kSplit ? kPanels : 1][8][32];
    float squares[kSplit ? kTiles : 1][kPanels][kRows];
  };

  const ConvolveHeadsArgs& args;
  Shared& shared;
  const int head;
  const int tokens;
  const int sequences;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row_in_tile = lane / 4 * 4;      // the first of this lane's four rows
  const int column_in_panel = lane % 4 * 8;  // the first of its eight columns of a panel

  // Latents.

  /// Eight columns of latents at `row`, which is null where there is none.
  __device__ static uint4 load(const T* row, int column) {
    if (row == nullptr) return make_uint4(0, 0, 0, 0);
    return *reinterpret_cast<const uint4*>(row + column);
  }

  /// One column of the accumulators: row i of this lane's four, panel p of its own, column c of its
  /// eight.
  using Sums = float[2][4 * kOwn][4];
  __device__ static float& at(Sums& sums, int i, int p, int c) {
    return sums[i / 2][4 * p + c / 2][i % 2 * 2 + c % 2];
  }

  __device__ int first_panel() const { return warp % kWarps * kOwn; }

  /// This lane's rows of latents, from a column of its first panel on.
  __device__ void load_rows(uint4 (&bits)[kOwn][4], int row, int head_number) const {
    const T* const rows = latents_of<T>(args, row);
    const int column = head_number * D + first_panel() * 32 + column_in_panel;
#pragma unroll
    for (int p = 0; p < kOwn; ++p) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool exists = row + i < tokens;
        bits[p][i] = load(exists ? rows + i * args.latents.row_stride : nullptr, column + p * 32);
      }
    }
  }
  __device__ static void add_rows(Sums& sums, const uint4 (&bits)[kOwn][4], float share) {
#pragma unroll
    for (int p = 0; p < kOwn; ++p) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float values[8];
        unpack<T>(values, bits[p][i]);
#pragma unroll
        for (int c = 0; c < 8; ++c) {
          at(sums, i, p, c) = __fmaf_rn(share, values[c], at(sums, i, p, c));
        }
      }
    }
  }

  /// Begins the sums with the bias and the mean of latents: half of the head itself, and half of
  /// the head of keys that it sees or of the mean of the heads that see it.
  __device__ void begin(Sums& sums, int row) const {
    const int group = args.num_heads / args.num_kv_heads;
    const bool query = head < args.num_heads;
    const int others = query ? 1 : group;
    const int other = query ? args.num_heads + head / group : (head - args.num_heads) * group;
    const float share = 0.5f / static_cast<float>(others);
    uint4 own[kOwn][4];
    uint4 bits[kOwn][4];
    load_rows(own, row, head);
    load_rows(bits, row, other);
#pragma unroll
    for (int p = 0; p < kOwn; ++p) {
      float bias[8];
      load_vector(bias, shared.weights.grouped_bias + (first_panel() + p) * 32 + column_in_panel);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int c = 0; c < 8; ++c) at(sums, i, p, c) = bias[c];
      }
    }
    add_rows(sums, own, 0.5f);
    add_rows(sums, bits, share);
#pragma unroll 1
    for (int o = 1; o < others; ++o) {
      load_rows(bits, row, other + o);
      add_rows(sums, bits, share);
    }
  }

  /// Eight columns of the first convolution, of which `first` and `second` are the latents.
  __device__ static void depthwise(uint32_t (&to)[4], const uint4& first, const uint4& second,
                                   const float (&weights)[3][8]) {
    float a[8];
    float b[8];
    unpack<T>(a, first);
    unpack<T>(b, second);
#pragma unroll
    for (int c = 0; c < 8; c += 2) {
      const auto sum = [&](int i) {
        return __fmaf_rn(weights[1][i], b[i], __fmaf_rn(weights[0][i], a[i], weights[2][i]));
      };
      const auto pair = Element<T>::pair(sum(c), sum(c + 1));
      to[c / 2] = *reinterpret_cast<const uint32_t*>(&pair);
    }
  }

  /// The first convolution of a panel of inputs, for each of this lane's rows: of the token before,
  /// and of the token itself.
  using Taps = uint32_t[2][4][4];

  /// `plain`: the two rows before each row are those before it in the batch.
  __device__ void make_taps(Taps& taps, int row, int panel, bool plain) const {
    const int64_t stride = args.latents.row_stride;
    const T* const rows = latents_of<T>(args, row);
    const int in_head = panel * 32 + column_in_panel;
    const int column = head * D + in_head;
    float weights[3][8];
    load_vector(weights[0], shared.weights.depthwise[0] + in_head);
    load_vector(weights[1], shared.weights.depthwise[1] + in_head);
    load_vector(weights[2], shared.weights.depthwise_bias + in_head);
    if (plain) {
      uint4 x[6];
#pragma unroll
      for (int i = 0; i < 6; ++i) {
        x[i] = *reinterpret_cast<const uint4*>(rows + (i - 2) * stride + column);
      }
      depthwise(taps[0][0], x[0], x[1], weights);
#pragma unroll
      for (int i = 0; i < 4; ++i) depthwise(taps[1][i], x[i + 1], x[i + 2], weights);
#pragma unroll
      for (int i = 0; i < 3; ++i) {
#pragma unroll
        for (int w = 0; w < 4; ++w) taps[0][i + 1][w] = taps[1][i][w];
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const T* const(&older)[3] = shared.before[warp].rows[row_in_tile + i];
      const uint4 first = load(older[1], column);
      const uint4 second = load(older[0], column);
      const bool exists = row + i < tokens;
      const uint4 third = load(exists ? rows + i * stride : nullptr, column);
      depthwise(taps[0][i], first, second, weights);
      depthwise(taps[1][i], second, third, weights);
    }
  }

  /// Adds what a panel of inputs gives to the second convolution.
  __device__ void multiply(Sums& sums, const Taps& taps, int panel) const {
#pragma unroll
    for (int tap = 0; tap < 2; ++tap) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Fragment a[2];
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          a[m] = {taps[tap][2 * m][2 * half], taps[tap][2 * m + 1][2 * half],
                  taps[tap][2 * m][2 * half + 1], taps[tap][2 * m + 1][2 * half + 1]};
        }
        const auto& step = shared.weights.grouped[tap * D / 16 + panel * 2 + half];
#pragma unroll
        for (int n = 0; n < 2 * kOwn; ++n) {
          const uint4 b = step[first_panel() * 2 + n][ConvolveWeights<T, D>::swizzled(lane)];
#pragma unroll
          for (int m = 0; m < 2; ++m) {
            mma<T>(sums[m][2 * n], a[m], b.x, b.y);
            mma<T>(sums[m][2 * n + 1], a[m], b.z, b.w);
          }
        }
      }
    }
  }

  /// Begins the sums, adds the second convolution, and calls `loaded` as soon as the latents of the
  /// rows themselves have come.
  template <class Loaded>
  __device__ void convolve(Sums& sums, int row, bool plain, Loaded loaded) const {
    if constexpr (kSplit) {
      // Each warp computes the inputs of its own panels, and takes the others from the others.
      auto& exchanged = shared.exchanged[warp / kWarps];
#pragma unroll
      for (int p = 0; p < kOwn; ++p) {
        Taps taps;
        make_taps(taps, row, first_panel() + p, plain);
#pragma unroll
        for (int v = 0; v < 8; ++v) {
          const auto& words = taps[v / 4][v % 4];
          exchanged[first_panel() + p][v][lane] =
              make_uint4(words[0], words[1], words[2], words[3]);
        }
      }
      begin(sums, row);
      __syncthreads();
#pragma unroll 1
      for (int panel = 0; panel < kPanels; ++panel) {
        Taps taps;
#pragma unroll
        for (int v = 0; v < 8; ++v) {
          const uint4 bits = exchanged[panel][v][lane];
          taps[v / 4][v % 4][0] = bits.x;
          taps[v / 4][v % 4][1] = bits.y;
          taps[v / 4][v % 4][2] = bits.z;
          taps[v / 4][v % 4][3] = bits.w;
        }
        multiply(sums, taps, panel);
      }
    } else {
      begin(sums, row);
      loaded();
#pragma unroll 1
      for (int panel = 0; panel < kPanels; ++panel) {
        Taps taps;
        make_taps(taps, row, panel, plain);
        multiply(sums, taps, panel);
      }
    }
  }

  /// Brings heads to their length, rotates and stores them.
  __device__ void finish(Sums& sums, int row, const float (&positions)[4]) const {
    float squares[4][kOwn];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int p = 0; p < kOwn; ++p) {
        float sum = 0;
#pragma unroll
        for (int c = 0; c < 8; ++c) sum = __fmaf_rn(at(sums, i, p, c), at(sums, i, p, c), sum);
        squares[i][p] = quad_sum(sum);
      }
    }
    float total[4];
    if constexpr (kSplit) {
      auto& exchanged = shared.squares[warp / kWarps];
      if (lane % 4 == 0) {
#pragma unroll
        for (int p = 0; p < kOwn; ++p) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            exchanged[first_panel() + p][row_in_tile + i] = squares[i][p];
          }
        }
      }
      __syncthreads();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        total[i] = exchanged[0][row_in_tile + i];
#pragma unroll
        for (int p = 1; p < kPanels; ++p) total[i] += exchanged[p][row_in_tile + i];
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        total[i] = squares[i][0];
#pragma unroll
        for (int p = 1; p < kPanels; ++p) total[i] += squares[i][p];
      }
    }
    const bool query = head < args.num_heads;
    const float length = sqrtf(static_cast<float>(args.model_dim)) *
                         (query ? 1.0f : args.temperature[head - args.num_heads]);
    const int dims = args.rotation.data != nullptr ? args.dims : 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      constexpr float kSmallest = 0x1p-23f;
      const float norm = sqrtf(total[i]);
      const float factor = length / (norm < kSmallest ? kSmallest : norm);  // a NaN stays one
      T* const out = static_cast<T*>(args.out.data) + (row + i) * args.out.row_stride + head * D;
#pragma unroll
      for (int p = 0; p < kOwn; ++p) {
        const int column = (first_panel() + p) * 32 + column_in_panel;
        float values[8];
#pragma unroll
        for (int c = 0; c < 8; ++c) values[c] = at(sums, i, p, c) * factor;
#pragma unroll
        for (int c = 0; c < 8; c += 2) {
          if (column + c < dims) {
            rotate(values[c], values[c + 1],
                   cos_sin(positions[i], shared.weights.frequencies[(column + c) / 2]));
          }
        }
        if (row + i < tokens) store_vector(out + column, values);
      }
    }
  }

  /// Looks up where the two rows before each row of a tile lie, and with kKeep where its rows are
  /// kept. All lanes of a warp call it together.
  template <bool kKeep>
  __device__ void look_back(int first) const {
    const int token = first + lane;
    const T* rows[3] = {};
    T* kept = nullptr;
    if (token < tokens) {
      const LatentPlace place(args, sequences, token);
      rows[0] = latents_before<T>(args, token, place, 1);
      rows[1] = latents_before<T>(args, token, place, 2);
      rows[2] = delayed_values<T>(args, token, place);
      if (kKeep && args.pages.rows.rank > 0 && is_kept(args.pages, token, place)) {
        kept = state_of<T>(args.pages, place.sequence, place.position);
      }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 3; ++i) shared.before[warp].rows[lane][i] = rows[i];
    shared.before[warp].kept[lane] = kept;
    __syncwarp();
  }

  /// Eight columns of the values of a row: its own ones, or those of the token before.
  __device__ uint4 load_values(int first, int r, int column, bool plain) const {
    const int64_t mixed = args.mixed_columns();
    const int own = args.delayed_column;
    const T* row = latents_of<T>(args, first + r) + mixed;
    if (column >= own) {
      row = plain ? row - args.latents.row_stride + own : shared.before[warp].rows[r][2];
      row -= row == nullptr ? 0 : own;
    }
    if (row != nullptr) return *reinterpret_cast<const uint4*>(row + column);
    uint4 bits = make_uint4(0, 0, 0, 0);
    if (args.first_values != nullptr) {
      auto* pairs = reinterpret_cast<typename Element<T>::Pair*>(&bits);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        pairs[i] = Element<T>::pair(args.first_values[column + 2 * i],
                                    args.first_values[column + 2 * i + 1]);
      }
    }
    return bits;
  }

  /// The values of every `step`-th row of a tile from `begin` on, kBatch rows at a time, so that
  /// they are on their way together.
  static constexpr int kBatch = 4;
  struct Values {
    uint4 bits[kBatch];
  };
  __device__ void load_batch(Values& values, int first, int begin, int step, int column,
                             bool plain) const {
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int r = begin + b * step;
      if (r < kRows && first + r < tokens && column < args.value_columns()) {
        values.bits[b] = load_values(first, r, column, plain);
      }
    }
  }
  __device__ void store_batch(const Values& values, int first, int begin, int step,
                              int column) const {
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int r = begin + b * step;
      if (r < kRows && first + r < tokens && column < args.value_columns()) {
        *reinterpret_cast<uint4*>(static_cast<T*>(args.out.data) +
                                  (first + r) * args.out.row_stride + args.mixed_columns() +
                                  column) = values.bits[b];
      }
    }
  }
  /// All but the first batch of the first 256 columns.
  __device__ void shift_rest(int first, int begin, int step, bool plain) const {
    const auto columns = static_cast<int>(args.value_columns());
    for (int column = lane * kVectorSize; column < columns; column += 32 * kVectorSize) {
      const int done = column < 32 * kVectorSize ? kBatch * step : 0;
      for (int r = begin + done; r < kRows; r += kBatch * step) {
        Values values;
        load_batch(values, first, r, step, column, plain);
        store_batch(values, first, r, step, column);
      }
    }
  }

  /// Heads of a tile, and the values of every `step`-th row from `shifted` on.
  __device__ void tile(int first, int shifted, int step, bool plain) const {
    Sums sums;
    const int row = first + row_in_tile;
    float positions[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      positions[i] =
          args.rotation.data != nullptr && row + i < tokens
              ? static_cast<const float*>(args.rotation.data)[(row + i) * args.rotation.row_stride]
              : 0.0f;
    }
    Values values;
    load_batch(values, first, shifted, step, lane * kVectorSize, plain);
    convolve(sums, row, plain, [&] {
      store_batch(values, first, shifted, step, lane * kVectorSize);
      shift_rest(first, shifted, step, plain);
    });
    finish(sums, row, positions);
  }

  /// Keeps `count` columns of the rows that the state keeps, from column `from` of latents on at
  /// column `to` of the state, by the warps of a tile.
  __device__ void keep(int first, int from, int to, int count) const {
    const Before& before = shared.before[warp];
    for (int column = lane * kVectorSize; column < count; column += 32 * kVectorSize) {
      uint4 bits[kRows / kWarps];
#pragma unroll
      for (int i = 0; i < kRows / kWarps; ++i) {
        const int r = warp % kWarps + i * kWarps;
        if (before.kept[r] == nullptr) continue;
        bits[i] = load(latents_of<T>(args, first + r), from + column);
      }
#pragma unroll
      for (int i = 0; i < kRows / kWarps; ++i) {
        T* const row = before.kept[warp % kWarps + i * kWarps];
        if (row != nullptr) *reinterpret_cast<uint4*>(row + to + column) = bits[i];
      }
    }
  }
};

}  // namespace packhorse::cuda
