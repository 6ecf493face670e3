// Heads of compressed convolutional attention by tensor cores: two taps in both convolutions.
//
// The second convolution is a matrix product for each head, [rows, 2 D] times [2 D, D]. Its left
// operand is the first convolution at both taps. The warps of a tile compute it side by side, each
// a panel of 32 columns at a time (make_taps), and hand it to one another through shared memory, in
// the order in which mma.sync wants it in registers; then each warp multiplies all panels, for its
// own columns of the output (multiply). To that end the columns of a product are renamed
// (cca/order.h), so that all that a lane reads of latents and writes of heads are vectors of
// 16 bytes. Of its tile's 32 rows a lane has the four that begin at 4 (lane / 4): where no sequence
// begins among them or right before them, six rows of latents give it all taps, and elsewhere each
// row has its own three (look_back). Weights lie in shared memory in the order in which lanes take
// them.
//
// A row's bits do not depend on the rows beside it, nor on the number of warps that share its
// columns: squares are summed over 32 columns first, then over these sums in ascending order.
#pragma once

#include "cuda/cca/latent_rows.cuh"
#include "cuda/cca/shares.cuh"
#include "cuda/cca/steps.cuh"
#include "cuda/cca/weights.cuh"
#include "cuda/common/mma_sm80.cuh"

namespace packhorse::cuda {

/// kWarps warps share the columns of a tile of 32 rows.
template <class T, int D, int kWarps, int kThreads_>
struct CcaTile {
  static constexpr int kThreads = kThreads_;  // threads of a block
  static constexpr int kWarpsOfTile = kWarps;
  static constexpr int kRows = 32;                       // rows of a tile
  static constexpr int kTiles = kThreads / 32 / kWarps;  // tiles that a block has at a time
  static constexpr int kPanels = D / 32;                 // 32 columns each
  static constexpr int kOwn = kPanels / kWarps;          // panels of a warp
  /// Rows that a tile's rows look back to, where sequences begin in it or right before it: `rows`
  /// are those of the token before, of the one before that, and of the delayed values, null where
  /// there is none; `kept` is where the state keeps the row, null where it does not.
  struct Before {
    const T* rows[kRows][3];
    T* kept[kRows];
  };
  /// First convolution of a panel, for each row of a lane: of the token before, then of the token
  /// itself.
  using Taps = uint4[8][32];
  struct Shared {
    CcaWeights<T, D> weights;
    Before before[kThreads / 32];
    Taps taps[kTiles][kWarps];
    float squares[kTiles][kPanels][kRows];
  };

  const CcaArgs& args;
  Shared& shared;
  const int head;
  const int tokens;
  const int sequences;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row_in_tile = lane / 4 * 4;      // the first of this lane's four rows
  const int column_in_panel = lane % 4 * 8;  // the first of its eight columns of a panel

  // Latents.

  /// Loads eight columns of latents at `row`; zeros where it is null.
  __device__ static uint4 load(const T* row, int column) {
    if (row == nullptr) return make_uint4(0, 0, 0, 0);
    return *reinterpret_cast<const uint4*>(row + column);
  }

  /// Returns one column of the accumulators: row i of this lane's four, panel p of its own, column
  /// c of its eight.
  using Sums = float[2][4 * kOwn][4];
  __device__ static float& at(Sums& sums, int i, int p, int c) {
    return sums[i / 2][4 * p + c / 2][i % 2 * 2 + c % 2];
  }

  __device__ int latent_stride() const { return static_cast<int>(args.latents.row_stride); }
  __device__ int first_panel() const { return warp % kWarps * kOwn; }

  /// Waits for the other warps of the tile.
  __device__ void sync_tile() const {
    __syncwarp();
    asm volatile("bar.sync %0, %1;" ::"r"(1 + warp / kWarps), "n"(32 * kWarps) : "memory");
  }

  /// Begins the sums with the bias and the mean of latents: half of the head itself, and half of
  /// the head of keys that it sees or of the mean of the heads that see it.
  __device__ void begin(Sums& sums, int row) const {
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
    const OtherHeads others(args, head);
    const T* const rows = latents_of<T>(args, row);
    const int stride = latent_stride();
#pragma unroll 1
    for (int o = -1; o < others.count; ++o) {
      const float share = o < 0 ? 0.5f : 0.5f / static_cast<float>(others.count);
      const int column =
          (o < 0 ? head : others.first + o) * D + first_panel() * 32 + column_in_panel;
      uint4 bits[kOwn][4];
#pragma unroll
      for (int p = 0; p < kOwn; ++p) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const bool exists = row + i < tokens;
          bits[p][i] = load(exists ? rows + i * stride : nullptr, column + p * 32);
        }
      }
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
  }

  /// Computes the first convolution of a panel for all warps of the tile. `plain`: the two rows
  /// before each row are those before it in the batch.
  __device__ void make_taps(Taps& taps, int row, int panel, bool plain) const {
    const int stride = latent_stride();
    const T* const rows = latents_of<T>(args, row);
    const int in_head = panel * 32 + column_in_panel;
    const int column = head * D + in_head;
    const auto with_half = [&](int half, auto convolve) {
      float4 weights[3];
      const auto at_half = [&](const float* from) {
        return reinterpret_cast<const float4*>(from + in_head)[half];
      };
      weights[0] = at_half(shared.weights.depthwise[0]);
      weights[1] = at_half(shared.weights.depthwise[1]);
      weights[2] = at_half(shared.weights.depthwise_bias);
      convolve(weights, [&](int v, const uint2& bits) {
        reinterpret_cast<uint2*>(&taps[v][lane])[half] = bits;
      });
    };
    const auto half_of = [](const uint4& bits, int half) {
      return half == 0 ? uint2{bits.x, bits.y} : uint2{bits.z, bits.w};
    };
    if (plain) {
      uint4 x[6];
#pragma unroll
      for (int i = 0; i < 6; ++i) {
        x[i] = *reinterpret_cast<const uint4*>(rows + (i - 2) * stride + column);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        with_half(half, [&](const float4(&weights)[3], auto store) {
          store(0, depthwise<T>(half_of(x[0], half), half_of(x[1], half), weights));
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const uint2 bits =
                depthwise<T>(half_of(x[i + 1], half), half_of(x[i + 2], half), weights);
            if (i < 3) store(i + 1, bits);
            store(4 + i, bits);
          }
        });
      }
      return;
    }
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {
      const T* const(&older)[3] = shared.before[warp].rows[row_in_tile + i];
      const bool exists = row + i < tokens;
      const uint4 x[3] = {load(older[1], column), load(older[0], column),
                          load(exists ? rows + i * stride : nullptr, column)};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        with_half(half, [&](const float4(&weights)[3], auto store) {
          store(i, depthwise<T>(half_of(x[0], half), half_of(x[1], half), weights));
          store(4 + i, depthwise<T>(half_of(x[1], half), half_of(x[2], half), weights));
        });
      }
    }
  }

  /// Adds the products of a panel of inputs to the second convolution.
  __device__ void multiply(Sums& sums, const Taps& taps, int panel) const {
#pragma unroll
    for (int tap = 0; tap < 2; ++tap) {
      uint4 rows[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) rows[i] = taps[4 * tap + i][lane];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Fragment a[2];
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          const uint4& even = rows[2 * m];
          const uint4& odd = rows[2 * m + 1];
          if (half == 0) {
            a[m] = {even.x, odd.x, even.y, odd.y};
          } else {
            a[m] = {even.z, odd.z, even.w, odd.w};
          }
        }
        const auto& step = shared.weights.grouped[tap * (D / 16) + panel * 2 + half];
#pragma unroll
        for (int n = 0; n < 2 * kOwn; ++n) {
          const uint4 b = step[first_panel() * 2 + n][CcaWeights<T, D>::swizzled(lane)];
#pragma unroll
          for (int m = 0; m < 2; ++m) {
            mma<T>(sums[m][2 * n], a[m], b.x, b.y);
            mma<T>(sums[m][2 * n + 1], a[m], b.z, b.w);
          }
        }
      }
    }
  }

  /// Adds the second convolution. Each warp computes every kWarps-th panel of its inputs.
  __device__ void convolve(Sums& sums, int row, bool plain) const {
    Taps(&taps)[kWarps] = shared.taps[warp / kWarps];
#pragma unroll 1
    for (int panel = 0; panel < kPanels; panel += kWarps) {
      if (panel > 0) sync_tile();  // all have taken the panels before
      make_taps(taps[warp % kWarps], row, panel + warp % kWarps, plain);
      sync_tile();
#pragma unroll 1
      for (int w = 0; w < kWarps; ++w) multiply(sums, taps[w], panel + w);
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
    sync_tile();
    float total[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      total[i] = exchanged[0][row_in_tile + i];
#pragma unroll
      for (int p = 1; p < kPanels; ++p) total[i] += exchanged[p][row_in_tile + i];
    }
    const float length = length_of_head(args, head);
    const int dims = args.rotation.data != nullptr ? args.dims : 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float factor = factor_to_length(length, total[i]);
      T* const out = row_of<T>(args.out, row + i) + head * D;
#pragma unroll
      for (int p = 0; p < kOwn; ++p) {
        const int column = (first_panel() + p) * 32 + column_in_panel;
        float values[8];
#pragma unroll
        for (int c = 0; c < 8; ++c) values[c] = at(sums, i, p, c) * factor;
        rotate_vector(values, column, dims, positions[i], shared.weights.frequencies);
        if (row + i < tokens) store_vector(out + column, values);
      }
    }
  }

  /// Finds the two rows before each row of a tile, and with kKeep the places where its rows are
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

  /// Loads eight columns of the values of a row: its own ones, or those of the token before.
  __device__ uint4 load_values(int first, int r, int column, bool plain) const {
    const auto mixed = static_cast<int>(args.mixed_columns());
    const int own = args.delayed_column;
    const T* row = latents_of<T>(args, first + r) + mixed;
    if (column >= own) {
      row = plain ? row - latent_stride() + own : shared.before[warp].rows[r][2];
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

  /// Shifts the values of every `step`-th row of a tile from `begin` on, a few rows at a time.
  __device__ void shift(int first, int begin, int step, bool plain) const {
    constexpr int kAtOnce = 4;
    const auto columns = static_cast<int>(args.value_columns());
    const auto mixed = static_cast<int>(args.mixed_columns());
#pragma unroll 1
    for (int column = lane * kVectorSize; column < columns; column += 32 * kVectorSize) {
#pragma unroll 1
      for (int r = begin; r < kRows; r += kAtOnce * step) {
        uint4 bits[kAtOnce];
        const auto exists = [&](int b) {
          return r + b * step < kRows && first + r + b * step < tokens;
        };
#pragma unroll
        for (int b = 0; b < kAtOnce; ++b) {
          if (exists(b)) bits[b] = load_values(first, r + b * step, column, plain);
        }
#pragma unroll
        for (int b = 0; b < kAtOnce; ++b) {
          if (exists(b)) {
            T* const row = row_of<T>(args.out, first + r + b * step) + mixed;
            *reinterpret_cast<uint4*>(row + column) = bits[b];
          }
        }
      }
    }
  }

  /// Computes the heads of a tile.
  __device__ void run(int first, bool plain) const {
    Sums sums;
    const int row = first + row_in_tile;
    float positions[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      positions[i] = args.rotation.data != nullptr && row + i < tokens
                         ? *row_of<const float>(args.rotation, row + i)
                         : 0.0f;
    }
    begin(sums, row);
    convolve(sums, row, plain);
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
