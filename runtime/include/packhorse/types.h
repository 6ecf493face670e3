// Element types, devices and tensor views, which all levels use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "packhorse/export.h"

namespace packhorse {

/// kFloat8 is e4m3 (OCP 8-bit floating point, the form without infinities): 4 bits of exponent, 3
/// of mantissa, up to 448.
enum class DType : uint8_t {
  kFloat32,
  kFloat16,
  kBFloat16,
  kInt32,
  kInt64,
  kInt8,
  kUInt8,
  kBool,
  kFloat8
};

/// The number of bytes of one element. Throws InvalidArgument for a number that is no DType, as
/// `name_of` does.
PACKHORSE_API size_t size_of(DType dtype);
/// Returns "float32", "bfloat16" and so on.
PACKHORSE_API const char* name_of(DType dtype);
/// The inverse of `name_of`. For an unknown name it throws InvalidArgument, which lists the known
/// ones.
PACKHORSE_API DType parse_dtype(std::string_view name);

enum class DeviceType : uint8_t { kCpu, kCuda };

struct Device {
  DeviceType type = DeviceType::kCpu;
  int index = 0;
  bool operator==(const Device&) const = default;
};

/// Parses "cpu", "cuda" (the same as "cuda:0") or "cuda:N". Throws InvalidArgument for other text.
PACKHORSE_API Device parse_device(std::string_view name);
PACKHORSE_API std::string name_of(Device device);

/// A non-owning view of a row-major tensor of up to four dimensions. Rows (the first dimension)
/// begin `row_stride` elements apart; the elements of a row are contiguous.
struct PACKHORSE_API TensorView {
  static constexpr int kMaxRank = 4;

  void* data = nullptr;
  DType dtype = DType::kFloat32;
  int rank = 0;
  int64_t shape[kMaxRank] = {};
  int64_t row_stride = 0;

  TensorView() = default;
  TensorView(void* data, DType dtype, int64_t size);
  TensorView(void* data, DType dtype, int64_t rows, int64_t columns);
  TensorView(void* data, DType dtype, int64_t rows, int64_t columns, int64_t row_stride);

  explicit operator bool() const { return data != nullptr; }
  int64_t rows() const { return rank > 0 ? shape[0] : 0; }
  /// The number of elements of one row.
  int64_t columns() const;
  int64_t size() const { return rows() * columns(); }
  /// Returns a view of the first `count` rows. Throws InvalidArgument if there are fewer.
  TensorView first_rows(int64_t count) const;
  /// Returns a view of columns [begin, begin + count) of a matrix, with the same row stride.
  TensorView column_slice(int64_t begin, int64_t count) const;
  /// Returns text such as "float32[12, 384]" for messages.
  std::string describe() const;

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

}  // namespace packhorse
