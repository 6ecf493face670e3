// Arguments of the operators that only models of images ask for.
#pragma once

#include <cstdint>

#include "ops/args/common.h"

namespace packhorse {

/// Ways to resize a table of positions to a grid of another size, with the centres of cells at
/// halves (PyTorch's align_corners=False). kLinear and kCubic (a = -0.75) take 2 and 4 rows of the
/// table in each direction. The others take wider filters where a grid is smaller than the table,
/// and a = -0.5 (PyTorch's antialias=True).
enum class GridResize : uint8_t { kLinear, kCubic, kLinearAntialias, kCubicAntialias };

/// The learned position of each cell of a grid of `rows` x `columns`.
struct GridTable {
  TensorView table;  // [rows * columns, E] or empty
  int64_t rows = 0;
  int64_t columns = 0;
  GridResize resize = GridResize::kCubic;
};

/// Row i of a sequence of `out` is row i of `prefix`, for the first rows; the others are the rows
/// of `x`, in order, plus the positions of their cells. Where the batch's numbers are bounds, x may
/// have further rows. Cells are counted row by row, and sequence
/// b has a grid of grids[2 b] x grids[2 b + 1] of them. A sequence with an empty grid has no rows.
///
/// The caller has checked that grids and offsets fit together.
struct EmbedPatchesArgs {
  TensorView x;                    // [P, E] of the patches of all sequences
  TensorView prefix;               // [rows before the patches, E] or empty
  GridTable positions;             // or none
  const int32_t* grids = nullptr;  // [B, 2]
  BatchView batch;                 // `out`'s rows
  TensorView out;                  // [T, E]
};

/// The widest head of ProbeAttentionArgs.
inline constexpr int64_t kMostProbeColumns = 512;

/// out[b] = attention of one query, the same for all sequences, over the keys of sequence b. An
/// empty sequence gives zeros. Columns of `out` from num_heads * head_dim on become zeros.
struct ProbeAttentionArgs {
  const float* query = nullptr;  // [num_heads * head_dim], heads one after the other
  TensorView keys;               // [T, E], E at least num_heads * head_dim
  TensorView values;             // [T, E]
  BatchView batch;
  int64_t num_heads = 0;
  int64_t head_dim = 0;
  float scale = 1;
  TensorView out;  // [B, E]
};

}  // namespace packhorse
