// Tasks of the vector kernels that process each row by itself, and those that adapters add to rows.
#pragma once

#include <stdint.h>

#include "ops/activation.h"

namespace packhorse::cpu {

/// gamma and beta are [columns], each may be null. If gamma is null there is no normalisation.
struct NormParams {
  const float* gamma = nullptr;
  const float* beta = nullptr;
  float eps = 0;
  bool rms = false;
  int64_t padding = 0;  // columns at the end that no statistic counts
};

/// out = norm(x + residual) + added, row by row. `residual` and `added` may be null, and may be the
/// same memory as out.
struct NormRows {
  const void* x = nullptr;
  const void* residual = nullptr;
  const void* added = nullptr;
  void* out = nullptr;
  int64_t x_stride = 0, residual_stride = 0, added_stride = 0, out_stride = 0;
  int64_t rows = 0, columns = 0;
  NormParams norm;
};

/// out = norm(word + position + type) of one token; position and type may be null.
struct EmbedRow {
  const void* word = nullptr;
  const void* position = nullptr;
  const void* type = nullptr;
  void* out = nullptr;
  int64_t columns = 0;
  NormParams norm;
};

/// out = the pool of `rows` rows, divided by its Euclidean norm if `normalize`. Without rows it is
/// zeros.
struct PoolRows {
  const void* x = nullptr;
  void* out = nullptr;
  int64_t x_stride = 0;
  int64_t rows = 0, columns = 0;
  float factor = 1;  // multiplies the sum
  bool take_max = false;
  bool weigh_rows = false;  // whether row i has weight i + 1 in the sum
  bool normalize = false;
};

/// to = from, or with a soft_cap over 0 soft_cap * tanh(scale * from / soft_cap), or with another
/// scale than 1 scale * from.
struct CastElements {
  const void* from = nullptr;
  void* to = nullptr;
  int64_t count = 0;
  float scale = 1;
  float soft_cap = 0;
};

/// out = x - log(sum of exp(x)); may be x.
struct LogSoftmaxRow {
  const void* x = nullptr;
  float* out = nullptr;
  int64_t columns = 0;
};

/// out = activation(gate) * up. In the 2 * `columns` elements of a row of x, kGateBlock elements of
/// gate and kGateBlock of up alternate. `out` may be the same memory as x if its rows are no
/// further apart.
struct GateRows {
  const void* x = nullptr;
  void* out = nullptr;
  int64_t x_stride = 0, out_stride = 0;
  int64_t rows = 0, columns = 0;  // columns is a multiple of kGateBlock
  Activation activation = Activation::kNone;
};

/// Normalises (RMS norm, if gamma is not null) the first model_dim columns of each head of one
/// token, then rotates columns j and j + pairs by cosines[j] and sines[j].
struct RotateRow {
  void* x = nullptr;  // [heads, head_dim]
  int64_t heads = 0;
  int head_dim = 0, model_dim = 0;
  NormParams norm;
  const float* cosines = nullptr;  // [pairs]
  const float* sines = nullptr;
  int pairs = 0;
  float* scratch = nullptr;  // [head_dim]
};

/// out[r] = x . a[r] for each of `rows` rows of a.
struct LoraShrink {
  const void* x = nullptr;  // [columns]
  const void* a = nullptr;  // [rows, columns], contiguous
  float* out = nullptr;     // [rows]
  int64_t rows = 0, columns = 0;
};

/// out[c] += sum over r < rank of inner[part of c, r] * b[r, c]
struct LoraExpand {
  const float* inner = nullptr;    // [parts, max_rank]
  const void* b = nullptr;         // rows are b_stride apart
  const int32_t* parts = nullptr;  // part of every 8 columns; 16 of them are of one part; or null
  void* out = nullptr;             // [columns]
  int64_t b_stride = 0;
  int64_t columns = 0;
  int rank = 0, max_rank = 0;
};

/// out = activation(x), element by element.
struct ActivateElements {
  const void* x = nullptr;
  void* out = nullptr;
  int64_t count = 0;
  Activation activation = Activation::kNone;
};

}  // namespace packhorse::cpu
