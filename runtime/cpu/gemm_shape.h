// What the dense layers of every dtype share: a shape, blocks of rows, panels of columns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <tuple>

#include "ops/args.h"

namespace packhorse::cpu {

/// Rows of one block: the unit in which rows are given.
inline constexpr int64_t kBlockRows = 64;

/// Blocks that one call should take where there are plenty: reading the weights for each 64 rows
/// would slow the kernels down, those of 16 bit and of bytes above all.
inline constexpr int64_t blocks_at_once(DType dtype) { return dtype == DType::kFloat32 ? 2 : 4; }

/// Columns of one panel; the last one may have fewer. Narrow panels let a small batch use all
/// threads; these are the narrowest that keep the kernels near their full rate.
constexpr int64_t panel_width(DType dtype) { return dtype == DType::kFloat32 ? 64 : 192; }
constexpr int64_t panel_count(int64_t out_features, DType dtype) {
  return (out_features + panel_width(dtype) - 1) / panel_width(dtype);
}

/// A dense layer, whatever its weights are: what a Gemm is made for.
struct DenseShape {
  int64_t in_features = 0;
  int64_t out_features = 0;
  DType dtype = DType::kFloat32;      // of x and the weight
  DType out_dtype = DType::kFloat32;  // sums are float32 in any case
  Activation activation = Activation::kNone;
  bool bias = false;

  auto key() const {
    return std::tuple(in_features, out_features, dtype, out_dtype, activation, bias);
  }
  bool operator<(const DenseShape& other) const { return key() < other.key(); }
};

/// Whether the kernels of a dtype take any number of rows, and rows apart; neither changes a bit.
constexpr bool takes_any_rows(DType dtype) { return dtype == DType::kFloat32; }

/// out = activation(x W^T + bias) for one block of rows, or several full ones.
class Gemm {
 public:
  struct Block {
    const void* x = nullptr;  // [readable_rows(rows), in_features]
    int64_t x_stride = 0;     // elements between rows; 0: contiguous, as where not takes_any_rows
    const float* x_scales = nullptr;   // [rows], of bytes: what they stand for (gemm_int8.h)
    const float* x_offsets = nullptr;  // likewise
    int64_t rows = 0;  // at most kBlockRows, or a multiple of it (run), or takes_any_rows
    const void* weight = nullptr;
    const float* bias = nullptr;
    void* out = nullptr;       // [out_rows, out_features]
    int64_t first_column = 0;  // of those in out, which lacks the columns before (run_panel)
    int64_t out_stride = 0;    // elements between rows
    int64_t out_rows = 0;      // at least rows; rows up to this number may be overwritten
    void* tile = nullptr;      // tile_bytes of scratch
    int worker = 0;
  };

  virtual ~Gemm() = default;
  /// The block size used for `rows` <= kBlockRows rows. x is read up to this row.
  virtual int64_t readable_rows(int64_t rows) const = 0;
  virtual void run(const Block& block) const = 0;
  virtual void run_panel(const Block& block, int64_t panel) const = 0;

  /// Scratch of one call: the sums of a panel, where they do not go to `out` at once.
  static constexpr size_t tile_bytes(DType dtype) {
    if (takes_any_rows(dtype)) return 0;
    const int64_t rows = kBlockRows * (dtype == DType::kInt8 ? blocks_at_once(dtype) : 1);
    return static_cast<size_t>(rows * panel_width(dtype)) * sizeof(float);
  }
};

}  // namespace packhorse::cpu
