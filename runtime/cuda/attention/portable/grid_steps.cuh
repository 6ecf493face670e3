// Score terms of grids (BEiT, arXiv 2106.08254). The table of a layer has one number for each step
// from cell to cell, and the grids of a batch may have any size. A kernel of its own resizes the
// table to each of them, once for all queries; the attention kernel behind it reads one number for
// each pair of tokens.
#pragma once

#include <cstddef>

#include "cuda/attention/varlen.cuh"
#include "cuda/common/mma_sm80.cuh"
#include "cuda/device/stream.h"
#include "ops/args/attention.h"

namespace packhorse::cuda {

/// Floats of the table of a head for a sequence of n tokens: 4 n. The first four hold the grid, its
/// rows and columns as integers. A grid of n - 1 cells has at most 4 (n - 1) steps, with those of
/// the first token.
inline constexpr int kGridHeader = 4;

/// Returns the bytes of all tables of a batch.
inline size_t grid_steps_bytes(const AttentionArgs& args) {
  if (args.term.kind != ScoreTermKind::kGrid) return 0;
  return static_cast<size_t>(4 * args.keys.num_tokens * args.num_heads) * sizeof(float);
}

/// Returns where the table of a head begins in `tables`, which are aligned to 16 bytes.
template <class Float>
__device__ Float* grid_table(Float* tables, int k_begin, int k_length, int head, int num_heads) {
  return tables + 4 * (int64_t{k_begin} * num_heads + int64_t{head} * k_length);
}

/// Writes the tables of a batch, in units of log2(e). `tables`: grid_steps_bytes, aligned to 16
/// bytes. Numbers of sequences may be bounds, with `counts`.
void launch_grid_steps(const AttentionArgs& args, float* tables, const KernelStream& stream);

/// The table of one head for one sequence, as attention reads it.
struct GridSteps {
  const float* numbers;
  int columns;  // cells in a row
  int last;     // number of the last cell
  int width;    // steps in a row of the table
  int middle;   // the step from a cell to itself
  int ends;     // the number of the first token as a query; as a key, and as both, follow

  __device__ GridSteps(const float* tables, const Sequence& s, int head, int num_heads) {
    const float* table = grid_table(tables, s.k_begin, s.k_length, head, num_heads);
    numbers = table + kGridHeader;
    const int rows = __float_as_int(table[0]);
    columns = __float_as_int(table[1]);
    last = rows * columns - 1;
    width = 2 * columns - 1;
    middle = (rows - 1) * width + columns - 1;
    ends = (2 * rows - 1) * width;
  }
  /// Returns where the cell of a token lies in a table of this width. Of the first token, and of
  /// those past the last one, which exist in tiles alone, it is that of some cell.
  __device__ int place(int token) const {
    const int cell = max(0, min(token - 1, last));
    const int row = cell / columns;
    return row * width + cell - row * columns;
  }
  __device__ float number(int query, int query_place, int key, int key_place) const {
    int at = query_place - key_place + middle;
    if (query == 0) at = ends;
    if (key == 0) at = query == 0 ? ends + 2 : ends + 1;
    return numbers[at];
  }
};

/// Adds the term to a warp's tile of scores. `position` is that of its first query in the sequence,
/// `key` that of the tile's first key.
template <int kBlocks>
__device__ void add_grid_steps(float (&scores)[kBlocks][4], const GridSteps& grid, int position,
                               int key) {
  const AccumulatorPlace place;
  const int queries[2] = {position + place.row, position + place.row + 8};
  const int query_places[2] = {grid.place(queries[0]), grid.place(queries[1])};
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
    for (int x = 0; x < 2; ++x) {
      const int at = key + n * 8 + place.column + x;
      const int key_place = grid.place(at);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        scores[n][2 * half + x] += grid.number(queries[half], query_places[half], at, key_place);
      }
    }
  }
}

}  // namespace packhorse::cuda
