#include "packhorse/types.h"

#include <charconv>
#include <iterator>

#include "core/format.h"
#include "packhorse/error.h"

namespace packhorse {
namespace {

struct DTypeInfo {
  DType dtype;
  size_t bytes;
  const char* name;
};

// Entries are in the order of the enum.
constexpr DTypeInfo kDTypes[] = {
    {DType::kFloat32, 4, "float32"},   {DType::kFloat16, 2, "float16"},
    {DType::kBFloat16, 2, "bfloat16"}, {DType::kInt32, 4, "int32"},
    {DType::kInt64, 8, "int64"},       {DType::kInt8, 1, "int8"},
    {DType::kUInt8, 1, "uint8"},       {DType::kBool, 1, "bool"},
    {DType::kFloat8, 1, "float8"},
};

const DTypeInfo& info(DType dtype) {
  const auto number = static_cast<size_t>(dtype);
  if (number < std::size(kDTypes)) return kDTypes[number];
  throw InvalidArgument(
      concat("a dtype has the number ", number, ", expected 0 to ", std::size(kDTypes) - 1));
}

}  // namespace

size_t size_of(DType dtype) { return info(dtype).bytes; }

const char* name_of(DType dtype) { return info(dtype).name; }

DType parse_dtype(std::string_view name) {
  std::string known;
  for (const DTypeInfo& candidate : kDTypes) {
    if (name == candidate.name) return candidate.dtype;
    known += concat(known.empty() ? "" : ", ", candidate.name);
  }
  throw InvalidArgument(concat("unknown dtype '", name, "'; known: ", known));
}

Device parse_device(std::string_view name) {
  if (name == "cpu") return {DeviceType::kCpu, 0};
  if (name == "cuda") return {DeviceType::kCuda, 0};
  constexpr std::string_view kPrefix = "cuda:";
  if (name.starts_with(kPrefix)) {
    const std::string_view digits = name.substr(kPrefix.size());
    unsigned short index = 0;  // unsigned, so that a sign is refused
    const auto [end, error] = std::from_chars(digits.begin(), digits.end(), index);
    if (error == std::errc() && end == digits.end()) return {DeviceType::kCuda, index};
  }
  throw InvalidArgument(concat("unknown device '", name, "'; expected 'cpu', 'cuda' or 'cuda:N'"));
}

std::string name_of(Device device) {
  return device.type == DeviceType::kCpu ? "cpu" : concat("cuda:", device.index);
}

TensorView::TensorView(void* data, DType dtype, int64_t size)
    : data(data), dtype(dtype), rank(1), shape{size}, row_stride(1) {}

TensorView::TensorView(void* data, DType dtype, int64_t rows, int64_t columns)
    : TensorView(data, dtype, rows, columns, columns) {}

TensorView::TensorView(void* data, DType dtype, int64_t rows, int64_t columns, int64_t row_stride)
    : data(data), dtype(dtype), rank(2), shape{rows, columns}, row_stride(row_stride) {}

int64_t TensorView::columns() const {
  int64_t columns = 1;
  for (int i = 1; i < rank; ++i) columns *= shape[i];
  return columns;
}

TensorView TensorView::first_rows(int64_t count) const {
  if (count < 0 || count > rows()) {
    throw InvalidArgument(concat("first ", count, " rows of ", describe(), " do not exist"));
  }
  TensorView view = *this;
  view.shape[0] = count;
  return view;
}

TensorView TensorView::column_slice(int64_t begin, int64_t count) const {
  if (rank != 2 || begin < 0 || count < 0 || begin > shape[1] - count) {
    throw InvalidArgument(concat("columns [", begin, ", ", begin, " + ", count, ") of ", describe(),
                                 " do not exist"));
  }
  TensorView view = *this;
  view.data = as<char>() + static_cast<size_t>(begin) * size_of(dtype);
  view.shape[1] = count;
  return view;
}

std::string TensorView::describe() const {
  std::string text = concat(name_of(dtype), "[");
  for (int i = 0; i < rank; ++i) text += concat(i > 0 ? ", " : "", shape[i]);
  return text + "]";
}

}  // namespace packhorse
