// Common sizes of dense layers of all dtypes: shapes, blocks of rows and panels of columns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <tuple>

#include "core/math.h"
#include "ops/activation.h"
#include "ops/args/common.h"
#include "ops/args/weight_groups.h"
#include "packhorse/types.h"

namespace packhorse::cpu {

/// The number of rows in a block, which is the unit in which kernels get rows.
inline constexpr int64_t kBlockRows = 64;

/// Blocks that one call should take if there are plenty. Reading the weights for every 64 rows
/// would slow down kernels, most of all those of bfloat16 and int8.
inline constexpr int64_t blocks_at_once(DType dtype) { return dtype == DType::kFloat32 ? 2 : 4; }

/// The number of columns of a panel; the last panel may have fewer. Narrow panels let a small batch
/// use all threads. These widths are the narrowest at which kernels still run close to their full
/// speed.
constexpr int64_t panel_width(DType dtype) { return dtype == DType::kFloat32 ? 32 : 192; }
constexpr int64_t panel_count(int64_t out_features, DType dtype) {
  return ceil_div(out_features, panel_width(dtype));
}

/// The dtype in which a weight is multiplied with rows of dtype `x`: its own, or that of widened
/// weights.
constexpr DType product_dtype(DType weight, DType x) { return is_widened(weight, x) ? x : weight; }

/// The shape of a dense layer, without its weights: what a Gemm is made for.
struct DenseShape {
  int64_t in_features = 0;
  int64_t out_features = 0;
  DType dtype = DType::kFloat32;      // product_dtype: that of x, and of a weight as it is computed
  DType weight = dtype;               // as it is stored
  DType out_dtype = DType::kFloat32;  // sums are always float32
  Activation activation = Activation::kNone;
  bool bias = false;
  WeightGroups groups = {};  // where weights are quantised in groups and dtype is kUInt8
  bool skinny = false;       // LinearFormat::skinny, which changes speed only

  auto key() const {
    return std::tuple(in_features, out_features, dtype, weight, out_dtype, activation, bias,
                      groups.bits, groups.size, groups.minima, groups.wide_inputs, skinny);
  }
  bool operator<(const DenseShape& other) const { return key() < other.key(); }
};

/// Returns whether the kernels for a dtype accept any number of rows, and rows that lie apart.
/// Neither changes a bit of a result there.
constexpr bool takes_any_rows(DType dtype) { return dtype == DType::kFloat32; }

/// The distance in floats at which rows of `columns` floats are best laid, for float32 products,
/// which read rows side by side: at a multiple of 2 KB the lines of a dozen rows would share one or
/// two sets of a first-level cache, and drive each other out.
constexpr bool rows_collide(int64_t stride) { return stride % 512 == 0; }
constexpr int64_t spread_stride(int64_t columns) {
  return rows_collide(columns) ? columns + 16 : columns;
}

/// out = activation(x W^T + bias) for one block of rows or for several full blocks.
class Gemm {
 public:
  struct Block {
    const void* x = nullptr;  // [readable_rows(rows), in_features]
    /// Elements between the beginnings of rows. 0 means contiguous, which is required unless
    /// takes_any_rows.
    int64_t x_stride = 0;
    /// Scales and offsets of the rows of int8 x, [rows] (gemm_int8.h). Where x comes in blocks,
    /// scales and sums of these instead (gemm_groupwise.h).
    const float* x_scales = nullptr;
    const float* x_offsets = nullptr;
    const int32_t* x_sums = nullptr;
    /// At most kBlockRows, or a multiple of it (only for `run`), or any number if takes_any_rows.
    int64_t rows = 0;
    const void* weight = nullptr;
    const float* bias = nullptr;
    void* out = nullptr;  // [out_rows, out_features]
    /// The column of the layer at which `out` begins (only for `run_columns`).
    int64_t first_column = 0;
    int64_t out_stride = 0;  // elements between the beginnings of rows
    int64_t out_rows = 0;    // at least `rows`; rows up to this number may be overwritten
    void* tile = nullptr;    // scratch of `tile_bytes` bytes
    int worker = 0;
  };

  virtual ~Gemm() = default;
  /// The block size that is used for `rows` <= kBlockRows rows. x is read up to this row.
  virtual int64_t readable_rows(int64_t rows) const = 0;
  /// True where x in 16-bit integers, in a block of `rows` rows, is to have its bytes apart
  /// (QuantizeBlocks).
  virtual bool takes_bytes_apart(int64_t) const { return false; }
  virtual void run(const Block& block) const = 0;
  /// The columns that a task of a block of `rows` <= kBlockRows rows should take.
  virtual int64_t columns_at_once(int64_t rows) const = 0;
  /// `begin` and `columns` are multiples of columns_at_once, or `columns` is what is left.
  virtual void run_columns(const Block& block, int64_t begin, int64_t columns) const = 0;

  /// The bytes of scratch for one call, which holds the sums of a panel if they do not go to `out`
  /// at once.
  static constexpr size_t tile_bytes(DType dtype) {
    if (takes_any_rows(dtype) || dtype == DType::kUInt8) return 0;
    const int64_t rows = kBlockRows * (dtype == DType::kInt8 ? blocks_at_once(dtype) : 1);
    return static_cast<size_t>(rows * panel_width(dtype)) * sizeof(float);
  }
};

}  // namespace packhorse::cpu
