#include "model/loading/tensor_reader.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "core/float_convert.h"
#include "core/format.h"
#include "core/ggml_blocks.h"
#include "packhorse/error.h"

namespace packhorse {

namespace {

int64_t row_bytes_of(const TensorBlocks& blocks) {
  const BlockForm form = form_of(blocks.kind);
  return blocks.shape[blocks.rank - 1] / form.elements * form.bytes;
}

// The tensor in blocks as a view without data.
SourceTensor values_of(const std::string& name, const TensorBlocks& blocks) {
  if (blocks.rank < 2 || blocks.rank > TensorView::kMaxRank || blocks.data == nullptr ||
      blocks.shape[blocks.rank - 1] % form_of(blocks.kind).elements != 0) {
    throw InvalidArgument(concat("weights: tensor '", name, "' has ", blocks.rank,
                                 " dimensions, expected 2 to ", TensorView::kMaxRank,
                                 ", data and rows of whole blocks of ", name_of(blocks.kind)));
  }
  SourceTensor result;
  result.rank = blocks.rank;
  std::copy_n(blocks.shape, blocks.rank, result.shape);
  result.row_stride = result.columns();
  result.blocks = &blocks;
  return result;
}

}  // namespace

const uint8_t* row_of(const TensorBlocks& blocks, int64_t row) {
  const int64_t at =
      blocks.row_order.empty() ? row : int64_t{blocks.row_order[static_cast<size_t>(row)]};
  return blocks.data + at * row_bytes_of(blocks);
}

SourceTensor TensorReader::find(const std::string& name) const {
  const TensorView tensor = source_.find(name);
  if (tensor.rank < 0 || tensor.rank > TensorView::kMaxRank) {
    throw InvalidArgument(concat("weights: tensor '", name, "' has ", tensor.rank,
                                 " dimensions, expected at most ", TensorView::kMaxRank));
  }
  if (tensor.rank > 0 && tensor.data == nullptr && tensor.size() != 0) {
    throw InvalidArgument(
        concat("weights: tensor '", name, "' is ", tensor.describe(), ", but its data is null"));
  }
  if (tensor.rank > 0) return {tensor};
  const TensorBlocks* blocks = source_.find_blocks(name);
  return blocks == nullptr ? SourceTensor() : values_of(name, *blocks);
}

SourceTensor TensorReader::require(const std::string& name, int64_t rows, int64_t columns,
                                   int64_t depth) const {
  const SourceTensor tensor = find(name);
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

SourceTensor TensorReader::require_quantized(const std::string& name, DType dtype, int64_t rows,
                                             int64_t columns) const {
  const SourceTensor tensor = find(name);
  if (tensor.rank == 2 && tensor.shape[0] == rows && tensor.shape[1] == columns &&
      tensor.dtype == dtype) {
    return tensor;
  }
  throw InvalidArgument(concat(
      "weights: tensor '", name, "' is ", tensor.rank == 0 ? "missing" : tensor.describe(),
      ", expected ", name_of(dtype), "[", rows, ", ", columns, "], as others of its layer are"));
}

void TensorReader::read_rows(const std::string& name, const SourceTensor& tensor, int64_t begin,
                             int64_t count, float* to) const {
  const int64_t columns = tensor.columns();
  if (tensor.blocks != nullptr) {
    const TensorBlocks& blocks = *tensor.blocks;
    const int64_t elements = form_of(blocks.kind).elements;
    const int64_t length = blocks.shape[blocks.rank - 1];  // values of a row of blocks
    for (int64_t at = 0; at < count * columns; at += length) {
      decode_blocks(blocks.kind, row_of(blocks, (begin * columns + at) / length), length / elements,
                    to + at);
    }
    release(tensor, begin, count);
    return check_finite(name, tensor, begin, count, to);
  }
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

void TensorReader::release(const SourceTensor& tensor, int64_t begin, int64_t count) const {
  if (tensor.blocks != nullptr) {
    const TensorBlocks& blocks = *tensor.blocks;
    const int64_t rows = tensor.columns() / blocks.shape[blocks.rank - 1];
    // Rows in another order are released with the rest of the file: they are few.
    const bool together = blocks.row_order.empty();
    return source_.release(together ? row_of(blocks, begin * rows) : blocks.data,
                           together ? static_cast<size_t>(count * rows * row_bytes_of(blocks)) : 0);
  }
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
