// Reads rows out of a WeightSource as float32 and checks them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "packhorse/weight_source.h"

namespace packhorse {

class TensorReader {
 public:
  explicit TensorReader(const WeightSource& source) : source_(source) {}

  bool has(const std::string& name) const { return find(name).rank != 0; }
  /// As WeightSource::find. Throws InvalidArgument for a tensor without data, and for numbers that
  /// are no rank or no dtype.
  TensorView find(const std::string& name) const;

  /// Returns the tensor called `name`. Throws InvalidArgument unless it exists, has a float dtype
  /// and has the expected shape: [rows] if `columns` is 0, [rows, columns] if `depth` is 0,
  /// otherwise [rows, columns, depth].
  TensorView require(const std::string& name, int64_t rows, int64_t columns,
                     int64_t depth = 0) const;
  /// Returns the matrix called `name` of weights that are quantised to `dtype`. Throws
  /// InvalidArgument unless it exists and is [rows, columns].
  TensorView require_quantized(const std::string& name, DType dtype, int64_t rows,
                               int64_t columns) const;

  /// True if the tensor exists and has this dtype.
  bool has_dtype(const std::string& name, DType dtype) const {
    const TensorView tensor = find(name);
    return tensor.rank != 0 && tensor.dtype == dtype;
  }

  /// Writes rows [begin, begin + count) of `tensor` to `to` as float32, then releases their pages.
  /// Throws InvalidArgument naming the first element that is NaN or infinite.
  void read_rows(const std::string& name, const TensorView& tensor, int64_t begin, int64_t count,
                 float* to) const;

  /// The check and the release of read_rows, for callers that use a float32 tensor without copying
  /// it. `values` points to the elements of the rows.
  void check_finite(const std::string& name, const TensorView& tensor, int64_t begin, int64_t count,
                    const float* values) const;
  void release(const TensorView& tensor, int64_t begin, int64_t count) const;

  /// Returns a whole vector [size].
  std::vector<float> read_vector(const std::string& name, int64_t size) const;

 private:
  const WeightSource& source_;
};

}  // namespace packhorse
