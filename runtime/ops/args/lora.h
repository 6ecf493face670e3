// Arguments of the operators of LoRA adapters.
//
// An adapter adds scale * B A x to what a dense layer makes of x (Hu et al., arXiv 2106.09685): A
// [rank, in_features], B [out_features, rank]. Several adapters lie in device memory at once, each
// in a slot, and every row of a batch says which of them it has. A row's result depends on the row
// and its adapter alone, and a row without an adapter is not touched.
#pragma once

#include <cstdint>

#include "ops/args/common.h"

namespace packhorse {

/// The number of columns that one entry of LoraLayer::parts is for.
inline constexpr int64_t kPartColumns = 8;

/// Weights of the adapters in all slots for one dense layer, of S slots, P parts and rank R at
/// most.
///
/// A layer that holds several layers of the source (queries, keys and values; gate and up) has so
/// many parts. Each part has its own A, and each column takes the one of its part.
struct LoraLayer {
  TensorView a;                    // [S P R, in_features]: slot, part, rank
  TensorView b;                    // [S R, out_features]: slot, rank; the scale is in it
  const int32_t* ranks = nullptr;  // [S] rank of each slot's adapter in this layer; 0: it has none
  /// [out_features / kPartColumns] the part of these columns, or null where there is one part. On a
  /// device whose head_dim_multiple is 16, 16 columns that begin at a multiple of 16 are of one
  /// part.
  const int32_t* parts = nullptr;
  int32_t num_parts = 1;
  int32_t max_rank = 0;

  /// Columns of LoraArgs::workspace.
  int64_t workspace_columns() const { return int64_t{num_parts} * max_rank; }
};

/// out[t] += B A x[t], with A and B of the slot slots[t]. Rows whose slot is negative, or whose
/// adapter has rank 0 in this layer, stay as they are. Sums are formed in float32, over the columns
/// of x in an order that depends on their number, and over ranks in ascending order.
struct LoraArgs {
  TensorView x;  // [rows, in_features]
  LoraLayer layer;
  const int32_t* slots = nullptr;  // [rows]
  TensorView out;                  // [rows, out_features]
  const int32_t* row_count = nullptr;
  float* workspace = nullptr;  // [rows, LoraLayer::workspace_columns()]
};

}  // namespace packhorse
