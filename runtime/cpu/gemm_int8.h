// Products of bytes: weights quantised by output feature, activations by row.
//
// A weight row is scale * q with q from -127 to 127; a row of activations is offset + scale * q
// with q from 0 to int8_levels(). Sums of products are exact 32-bit integers, so no block size and
// no kernel can change a bit of them, as long as none saturates on the way: without VNNI, oneDNN's
// kernels add pairs of products in 16 bits, and q of activations stays below 128 there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "cpu/gemm.h"
#include "cpu/gemm_kernel.h"

namespace packhorse::cpu {

/// The largest q of an activation on this machine.
int int8_levels();

/// Where the parts of a packed int8 weight lie: panels, then both vectors.
struct Int8Weight {
  Int8Weight(const void* packed, size_t panel_bytes, int64_t out_features);
  const void* panels;
  const float* scales;  // [out_features]
  const float* sums;    // [out_features] scale * the sum of q: what an offset of x is multiplied by
};

size_t packed_int8_bytes(int64_t in_features, int64_t out_features);
/// Quantises a float32 [out_features, in_features] matrix: scale = max |w| / 127 of the row,
/// q = w / scale rounded to nearest, ties to even. Throws InvalidArgument where a sum of so many
/// products could leave 32 bits.
void pack_int8_weight(const float* weight, int64_t in_features, int64_t out_features, void* packed,
                      ThreadPool& pool);
/// The same of a matrix that is quantised already.
void pack_int8_weight(const int8_t* weight, const float* scales, int64_t in_features,
                      int64_t out_features, void* packed, ThreadPool& pool);

/// sums = x W^T of one panel of columns.
class Int8Gemm {
 public:
  /// Most rows of one call.
  static constexpr int64_t kMostRows = kBlockRows * blocks_at_once(DType::kInt8);

  /// Throws RuntimeError when oneDNN has no kernel, or none that is exact.
  Int8Gemm(int64_t in_features, int64_t out_features, GemmWorkers& workers);

  int64_t panels() const { return layout_.panels; }
  int64_t columns(int64_t panel) const {
    return panel + 1 == layout_.panels ? layout_.last_columns : layout_.columns;
  }
  size_t panel_bytes() const { return layout_.bytes; }

  /// x [rows, in_features] and sums [rows, columns(panel)], contiguous; both must be there up to
  /// the next multiple of 64 rows, what lies past `rows` is of no account.
  void run(const uint8_t* x, int64_t rows, const void* panels, int64_t panel, int32_t* sums,
           int worker) const;

 private:
  // oneDNN's kernels for one number of rows.
  struct SizedKernels {
    int64_t rows;
    std::optional<Kernel> full, last;
  };

  void make(int64_t rows);
  void check_exact() const;

  const PackedLayout layout_;
  const int64_t in_features_;
  GemmWorkers& workers_;
  mutable std::vector<SizedKernels> kernels_;  // by falling rows
};

}  // namespace packhorse::cpu
