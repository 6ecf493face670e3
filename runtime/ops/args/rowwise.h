// Arguments of the operators that move or clear rows. They are apart from args.h because kernels
// that compute include args.h and do not depend on these.
#pragma once

#include <cstdint>

#include "ops/args.h"

namespace packhorse {

/// out[i] = x[rows[i]] for i < *row_count; the other rows of `out` become zeros.
struct GatherRowsArgs {
  TensorView x;
  const int32_t* rows = nullptr;       // [rows of out], each a row of x; null: 0, 1, ...
  TensorView out;                      // dtype and columns of x; may be x if `rows` is null
  const int32_t* row_count = nullptr;  // [1] in device memory; null: all rows
};

/// Sets out[b] to zeros for every sequence b that has no tokens.
struct ClearEmptyArgs {
  BatchView batch;
  TensorView out;  // [B, columns]
};

}  // namespace packhorse
