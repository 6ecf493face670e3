#include "model/loading/tensor_reader.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "core/float_convert.h"
#include "core/format.h"
#include "packhorse/error.h"

namespace packhorse {

TensorView TensorReader::find(const std::string& name) const {
  const TensorView tensor = source_.find(name);
  if (tensor.rank < 0 || tensor.rank > TensorView::kMaxRank) {
    throw InvalidArgument(concat("weights: tensor '", name, "' has ", tensor.rank,
                                 " dimensions, expected at most ", TensorView::kMaxRank));
  }
  if (tensor.rank > 0 && tensor.data == nullptr && tensor.size() != 0) {
    throw InvalidArgument(
        concat("weights: tensor '", name, "' is ", tensor.describe(), ", but its data is null"));
  }
  return tensor;
}

TensorView TensorReader::require(const std::string& name, int64_t rows, int64_t columns,
                                 int64_t depth) const {
  const TensorView tensor = find(name);
  const std::array<int64_t, 3> shape = {rows, columns, depth};
  const int rank = columns == 0 ? 1 : depth == 0 ? 2 : 3;
  std::string expected = concat("[", rows);
  for (int i = 1; i < rank; ++i) expected += concat(", ", shape[static_cast<size_t>(i)]);
  expected += "]";
  if (tensor.rank == 0) {
    throw InvalidArgument(concat("weights: tensor '", name, "' ", expected, " is missing"));
  }
  const bool same_shape =
      tensor.rank == rank && std::equal(tensor.shape, tensor.shape + rank, shape.begin());
  const bool is_float = tensor.dtype == DType::kFloat32 || tensor.dtype == DType::kFloat16 ||
                        tensor.dtype == DType::kBFloat16;
  if (tensor.dtype == DType::kInt8 || tensor.dtype == DType::kFloat8) {
    throw InvalidArgument(concat("weights: tensor '", name, "' is ", tensor.describe(),
                                 ", quantised; load this model with dtype ",
                                 name_of(tensor.dtype)));
  }
  if (!same_shape || !is_float) {
    throw InvalidArgument(concat("weights: tensor '", name, "' is ", tensor.describe(),
                                 ", expected float32, float16 or bfloat16 ", expected));
  }
  return tensor;
}

TensorView TensorReader::require_quantized(const std::string& name, DType dtype, int64_t rows,
                                           int64_t columns) const {
  const TensorView tensor = find(name);
  if (tensor.rank == 2 && tensor.shape[0] == rows && tensor.shape[1] == columns &&
      tensor.dtype == dtype) {
    return tensor;
  }
  throw InvalidArgument(concat(
      "weights: tensor '", name, "' is ", tensor.rank == 0 ? "missing" : tensor.describe(),
      ", expected ", name_of(dtype), "[", rows, ", ", columns, "], as others of its layer are"));
}

void TensorReader::read_rows(const std::string& name, const TensorView& tensor, int64_t begin,
                             int64_t count, float* to) const {
  const int64_t columns = tensor.columns();
  const size_t elements = static_cast<size_t>(count * columns);
  const size_t row_bytes = static_cast<size_t>(columns) * size_of(tensor.dtype);
  const char* from = tensor.as<const char>() + static_cast<size_t>(begin) * row_bytes;
  to_float32(from, tensor.dtype, to, elements);
  release(tensor, begin, count);
  check_finite(name, tensor, begin, count, to);
}

void TensorReader::check_finite(const std::string& name, const TensorView& tensor, int64_t begin,
                                int64_t count, const float* values) const {
  const auto elements = static_cast<size_t>(count * tensor.columns());
  // NaN and Inf without their sign bit are larger than all finite numbers even when compared as
  // integers. So the loop has no branches and one comparison follows it.
  int32_t largest = 0;
  for (size_t i = 0; i < elements; ++i) {
    largest = std::max(largest, std::bit_cast<int32_t>(values[i]) & 0x7fffffff);
  }
  if (largest < 0x7f800000) return;
  for (size_t i = 0; i < elements; ++i) {
    if (!std::isfinite(values[i])) {
      throw InvalidArgument(concat("weights: tensor '", name, "' holds ", values[i], " at element ",
                                   static_cast<size_t>(begin * tensor.columns()) + i,
                                   ", expected finite numbers"));
    }
  }
}

void TensorReader::release(const TensorView& tensor, int64_t begin, int64_t count) const {
  const size_t row_bytes = static_cast<size_t>(tensor.columns()) * size_of(tensor.dtype);
  source_.release(tensor.as<const char>() + static_cast<size_t>(begin) * row_bytes,
                  static_cast<size_t>(count) * row_bytes);
}

std::vector<float> TensorReader::read_vector(const std::string& name, int64_t size) const {
  std::vector<float> values(static_cast<size_t>(size));
  // A vector is read as `size` rows of one element each.
  read_rows(name, require(name, size, 0), 0, size, values.data());
  return values;
}

}  // namespace packhorse
