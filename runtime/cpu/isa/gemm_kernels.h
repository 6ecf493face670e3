// Tasks of the vector kernels of dense layers, and of those that make bytes of their rows.
#pragma once

#include <stdint.h>

#include "ops/activation.h"

namespace packhorse::cpu {

/// values = round((x - offset) / scale), where offset is the smallest element of the row and scale
/// is such that the largest element gives `levels`. If a row contains NaN or Inf, its scale and
/// offset are NaN.
struct QuantizeRows {
  const void* x = nullptr;
  int64_t x_stride = 0;
  int64_t rows = 0, columns = 0;
  float levels = 0;
  uint8_t* values = nullptr;  // [rows, columns], contiguous
  float* scales = nullptr;    // [rows]
  float* offsets = nullptr;   // [rows]
};

/// out = activation(sums * scale of the row * scale of the column + offset of the row * sum of the
/// column + bias)
struct DequantizeRows {
  const int32_t* sums = nullptr;  // [rows, columns], contiguous
  const float* scales = nullptr;  // [rows]
  const float* offsets = nullptr;
  const float* weight_scales = nullptr;  // [columns]
  const float* weight_sums = nullptr;
  const float* bias = nullptr;  // or null
  void* out = nullptr;
  int64_t out_stride = 0;
  int64_t rows = 0, columns = 0;
  Activation activation = Activation::kNone;
};

/// out = activation(x W^T + bias) in float32, for any number of rows and columns. The bits of a sum
/// depend only on its own row and column. The weight is float32, bfloat16 or float16; it is
/// converted to float32 exactly, so that its dtype changes no bit of a result.
struct MultiplyRows {
  const float* x = nullptr;
  int64_t x_stride = 0;
  const void* weight = nullptr;  // packed
  const float* bias = nullptr;   // or null
  float* out = nullptr;
  int64_t out_stride = 0;
  int64_t rows = 0, in_features = 0, columns = 0;
  Activation activation = Activation::kNone;
};

/// packed = the columns of W in the order that MultiplyRows reads, rounded to the dtype of `packed`
/// to nearest, ties to even. Columns may be packed, and read, in parts that begin at multiples of
/// kPackedColumns.
inline constexpr int64_t kPackedColumns = 32;
struct PackColumns {
  const float* weight = nullptr;  // [columns, in_features]
  int64_t in_features = 0, columns = 0;
  void* packed = nullptr;  // [in_features * columns up to the next multiple of kPackedColumns]
};

/// The columns that MultiplyStripe computes: a stripe of a weight in the layout that oneDNN gives
/// it. For every group of 2 (bfloat16) or 4 (int8) input features it has the elements of the group
/// of one column after those of another; after the last input feature come zeros, up to the next
/// multiple of 16 groups.
inline constexpr int64_t kStripeColumns = 64;
/// The most rows for which reading the weights from memory is what limits a product.
inline constexpr int64_t kSkinnyRows = 16;

/// out = x W^T + bias for 1 to kSkinnyRows rows and kStripeColumns columns, which reads the weight
/// from memory once. x and the weight are bfloat16, and the bits of a sum are those of oneDNN's
/// kernels; or x is uint8, the weight int8, and `out` the exact sums without a bias.
struct MultiplyStripe {
  const void* x = nullptr;
  int64_t x_stride = 0;
  const void* weight = nullptr;
  const float* bias = nullptr;  // [columns], or null
  void* out = nullptr;
  int64_t out_stride = 0;
  int64_t rows = 0, in_features = 0, columns = 0;
  /// A sum is the sum, in order, of sums of so many input features (bfloat16 only; a multiple of
  /// 32).
  int64_t chunk = 0;
  int64_t stripe_bytes = 0;  // from this stripe to the next, which may be prefetched
};

/// Columns of a panel of a weight for MultiplyPanels.
inline constexpr int64_t kPanelColumns = 16;
/// Rows of x are read, and those of a weight filled up with zeros, in pieces of so many bytes.
inline constexpr int64_t kPieceBytes = 16;

/// out = activation(x W^T + bias) for any number of rows and columns. x and the weight are
/// bfloat16; or x is uint8 up to int8_levels(), the weight int8, and `out` the exact sums, without
/// a bias. The weight is packed in panels of kPanelColumns columns: for every group of input
/// features, of Kernels::panel_group_bytes bytes, the group of one column after that of another.
/// The bits of a sum depend only on its own row and column.
struct MultiplyPanels {
  const void* x = nullptr;
  int64_t x_stride = 0;
  const void* weight = nullptr;   // from the first column on
  const float* bias = nullptr;    // or null; only for bfloat16
  const int32_t* sums = nullptr;  // [columns] of the weights of a column, only for int8 on aarch64
  void* out = nullptr;
  int64_t out_stride = 0;
  int64_t rows = 0, in_features = 0, columns = 0;
  Activation activation = Activation::kNone;
};

/// Features of a row of x that are quantised together for a product with weights in groups. Rows
/// are filled up with zeros to a multiple of them.
inline constexpr int64_t kGroupBlock = 32;
/// Features whose sum is kept.
inline constexpr int64_t kGroupSpan = 16;
/// Features of a row of x that are quantised together to 16 bits, for weights of 10 bits, and of a
/// group of these.
inline constexpr int64_t kWideBlock = 64;

/// values = round(x / scale) to nearest, ties to even, where scale = max |x| / 127 of a block of
/// kGroupBlock features or, where `wide`, max |x| / 32767 of one of kWideBlock. A block that
/// contains NaN or Inf has the scale NaN.
struct QuantizeBlocks {
  const void* x = nullptr;
  int64_t x_stride = 0;
  int64_t rows = 0, columns = 0;
  /// [rows, columns up to the next whole block] bytes; where `wide`, 16-bit integers, of every 4
  /// neighbours 0, 2, 1, 3.
  int8_t* values = nullptr;
  float* scales = nullptr;         // [rows, blocks]
  int32_t* sums = nullptr;         // [rows, 2 * blocks], of every kGroupSpan values; not `wide`
  const int32_t* order = nullptr;  // [columns] the column of x that comes at each place, or null
  bool wide = false;
  bool apart = false;  // only `wide`: of each block the low bytes, then the high ones, all in order
};

/// out = activation(x W^T + bias) for a stripe of up to kStripeColumns columns whose weights are
/// quantised in groups (WeightGroups). For every group of 16, or 32 features of a larger one, or 64
/// of 10 bits, the sum of the products of integers is exact; it is converted to float32, multiplied
/// by the scale of the weights, and that times the scale of x is added (fma). With minima, the
/// minimum times (scale of x times the sum of x) is added next. So a result does not depend on the
/// other rows.
struct MultiplyGroupwise {
  const int8_t* x = nullptr;  // as QuantizeBlocks makes them
  const float* x_scales = nullptr;
  const int32_t* x_sums = nullptr;  // not with 10 bits
  const uint8_t* weight = nullptr;  // this stripe, packed (groups_layout.h)
  const float* bias = nullptr;      // [columns], or null
  void* out = nullptr;
  int64_t out_stride = 0;
  int64_t rows = 0, blocks = 0, columns = 0;  // blocks of a row of x
  int bits = 0, group = 0;
  bool minima = false;
  Activation activation = Activation::kNone;
};

}  // namespace packhorse::cpu
