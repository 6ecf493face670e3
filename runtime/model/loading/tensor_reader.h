// Reads rows out of a WeightSource as float32 and checks them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "packhorse/weight_source.h"

namespace packhorse {

/// Row `row` of a tensor in blocks, where all dimensions but the last are counted as one.
const uint8_t* row_of(const TensorBlocks& blocks, int64_t row);

/// Tensor of a source: a view of its elements or, if `blocks` is not null, float32 values that are
/// quantised in blocks, where `data` is null.
struct SourceTensor : TensorView {
  const TensorBlocks* blocks = nullptr;

  /// Returns a view of the same elements as a matrix of this shape.
  SourceTensor as_matrix(int64_t num_rows, int64_t num_columns) const {
    SourceTensor result{TensorView(data, dtype, num_rows, num_columns)};
    result.blocks = blocks;
    return result;
  }
};

class TensorReader {
 public:
  explicit TensorReader(const WeightSource& source) : source_(source) {}

  bool has(const std::string& name) const { return find(name).rank != 0; }
  bool lasts(const std::string& name) const { return source_.lasts(name); }
  /// The tensor called `name`, of rank 0 if there is none. Throws InvalidArgument for a tensor
  /// without data, and for numbers that are no rank or no dtype.
  SourceTensor find(const std::string& name) const;

  /// Returns the tensor called `name`. Throws InvalidArgument unless it exists, has a float dtype
  /// and has the expected shape: [rows] if `columns` is 0, [rows, columns] if `depth` is 0,
  /// otherwise [rows, columns, depth].
  SourceTensor require(const std::string& name, int64_t rows, int64_t columns,
                       int64_t depth = 0) const;
  /// Returns the matrix called `name` of weights that are quantised to `dtype`. Throws
  /// InvalidArgument unless it exists and is [rows, columns].
  SourceTensor require_quantized(const std::string& name, DType dtype, int64_t rows,
                                 int64_t columns) const;

  /// True if the tensor exists and has this dtype.
  bool has_dtype(const std::string& name, DType dtype) const {
    const TensorView tensor = find(name);
    return tensor.rank != 0 && tensor.dtype == dtype;
  }

  /// Writes rows [begin, begin + count) of `tensor` to `to` as float32, then releases their pages.
  /// Throws InvalidArgument naming the first element that is NaN or infinite.
  void read_rows(const std::string& name, const SourceTensor& tensor, int64_t begin, int64_t count,
                 float* to) const;

  /// The check and the release of read_rows, for callers that use a float32 tensor without copying
  /// it. `values` points to the elements of the rows.
  void check_finite(const std::string& name, const TensorView& tensor, int64_t begin, int64_t count,
                    const float* values) const;
  void release(const SourceTensor& tensor, int64_t begin, int64_t count) const;

  /// Returns a whole vector [size].
  std::vector<float> read_vector(const std::string& name, int64_t size) const;

 private:
  const WeightSource& source_;
};

}  // namespace packhorse
