// Arguments of the ops that move or clear rows: see args.h, which kernels see in their place.
#pragma once

#include <cstdint>

#include "ops/args.h"

namespace packhorse {

/// out[i] = x[rows[i]]; zeros for i from *row_count on.
struct GatherRowsArgs {
  TensorView x;
  const int32_t* rows = nullptr;       // [rows of out], in range; or null: 0, 1, ...
  TensorView out;                      // of x's dtype and columns; may be x where `rows` is null
  const int32_t* row_count = nullptr;  // in the device's memory, or null
};

/// out[b] = zeros for every sequence b without tokens.
struct ClearEmptyArgs {
  BatchView batch;
  TensorView out;  // [B, columns]
};

}  // namespace packhorse
