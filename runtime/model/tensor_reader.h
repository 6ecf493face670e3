// Reads checked float32 rows out of a WeightSource.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "packhorse/weight_source.h"

namespace packhorse {

class TensorReader {
 public:
  explicit TensorReader(const WeightSource& source) : source_(source) {}

  bool has(const std::string& name) const { return source_.find(name).rank != 0; }

  /// The tensor called `name`. Throws InvalidArgument unless it is there, of a float dtype and of
  /// that shape: [rows] (`columns` 0), [rows, columns] (`depth` 0) or [rows, columns, depth].
  TensorView require(const std::string& name, int64_t rows, int64_t columns,
                     int64_t depth = 0) const;
  /// Likewise of a matrix of int8.
  TensorView require_quantized(const std::string& name, int64_t rows, int64_t columns) const;

  /// Whether the tensor is there, quantised.
  bool is_quantized(const std::string& name) const {
    return source_.find(name).dtype == DType::kInt8;
  }

  /// Rows [begin, begin + count) of `tensor` as float32 into `to`; gives the pages back. Throws
  /// InvalidArgument naming the first element that is NaN or Inf.
  void read_rows(const std::string& name, const TensorView& tensor, int64_t begin, int64_t count,
                 float* to) const;

  /// What read_rows does to rows that are float32 in the source, in two parts: for a reader of the
  /// tensor itself. `values` are the rows' elements.
  void check_finite(const std::string& name, const TensorView& tensor, int64_t begin, int64_t count,
                    const float* values) const;
  void release(const TensorView& tensor, int64_t begin, int64_t count) const;

  /// A whole vector.
  std::vector<float> read_vector(const std::string& name, int64_t size) const;

 private:
  const WeightSource& source_;
};

}  // namespace packhorse
