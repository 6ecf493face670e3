#include "model/loading/grouped_parts.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/float_convert.h"
#include "core/format.h"
#include "packhorse/error.h"

namespace packhorse {
namespace {

// The float16 with this number among those that begin at `from`.
uint16_t half_at(const uint8_t* from, int64_t index) {
  uint16_t bits = 0;
  std::memcpy(&bits, from + index * 2, sizeof(bits));
  return bits;
}

uint16_t finite(uint16_t bits, const std::string& name) {
  if ((bits & 0x7c00) != 0x7c00) return bits;
  throw InvalidArgument(
      concat("weights: tensor '", name, "' has a scale or a minimum that is not finite"));
}

float as_float(uint16_t half) {
  float value = 0;
  to_float32(&half, DType::kFloat16, &value, 1);
  return value;
}

}  // namespace

WeightGroups common_groups(const WeightGroups& a, const WeightGroups& b) {
  return {std::max(a.bits, b.bits), std::min(a.size, b.size), a.minima || b.minima, a.ordered};
}

std::vector<int32_t> read_input_order(const TensorReader& reader, const std::string& name,
                                      int64_t in_features) {
  const TensorView tensor = reader.find(name);
  const auto size = static_cast<size_t>(in_features);
  if (tensor.rank != 1 || tensor.dtype != DType::kInt32 || tensor.shape[0] != in_features) {
    throw InvalidArgument(
        concat("weights: tensor '", name, "' is ", tensor.rank == 0 ? "missing" : tensor.describe(),
               ", expected int32[", in_features, "], as 'quantized' of the spec says"));
  }
  std::vector<int32_t> order(size);
  std::memcpy(order.data(), tensor.data, size * sizeof(int32_t));  // it need not be aligned
  std::vector<bool> named(size);
  for (const int32_t feature : order) {
    const bool there = feature >= 0 && feature < in_features;
    if (!there || named[static_cast<size_t>(feature)]) {
      throw InvalidArgument(concat("weights: tensor '", name, "' names feature ", feature,
                                   there ? " twice" : "", ", expected each of ", in_features,
                                   " features once"));
    }
    named[static_cast<size_t>(feature)] = true;
  }
  return order;
}

GroupedTensor::GroupedTensor(const TensorReader& reader, const std::string& of, int64_t rows,
                             int64_t in_features, const WeightGroups& form)
    : name(of), columns(in_features), groups(form), tensor(reader.find(of)) {
  const int64_t bytes = value_bytes() + 2 * groups.count(columns) * (groups.minima ? 2 : 1);
  if (tensor.rank == 2 && tensor.dtype == DType::kUInt8 && tensor.shape[0] == rows &&
      tensor.shape[1] == bytes) {
    return;
  }
  throw InvalidArgument(
      concat("weights: tensor '", name, "' is ", tensor.rank == 0 ? "missing" : tensor.describe(),
             ", expected uint8[", rows, ", ", bytes, "]: ", columns, " values of ", groups.bits,
             " bits in groups of ", groups.size, ", as 'quantized' of the spec says"));
}

void GroupedTensor::decode_row(int64_t i, float* to) const {
  const uint8_t* bytes = row(i);
  const uint8_t* scales = bytes + value_bytes();
  const uint8_t* minima = scales + 2 * groups.count(columns);
  for (int64_t k = 0; k < columns; ++k) {
    const int64_t group = k / groups.size;
    const float scale = as_float(finite(half_at(scales, group), name));
    const float minimum = groups.minima ? as_float(finite(half_at(minima, group), name)) : 0;
    const int zero = groups.minima ? 0 : groups.zero();
    to[k] = scale * static_cast<float>(value(bytes, k) - zero) + minimum;
  }
}

GroupedLayer::GroupedLayer(int64_t out_features, int64_t in_features, const WeightGroups& groups)
    : in_features_(in_features), groups_(groups) {
  values_.resize(static_cast<size_t>(out_features * in_features));
  scales_.resize(static_cast<size_t>(out_features * groups.count(in_features)));
  if (groups.minima) minima_.resize(scales_.size());
}

void GroupedLayer::put_row(const GroupedTensor& from, int64_t row, int64_t to) {
  const WeightGroups& theirs = from.groups;
  uint8_t* values = values_.data() + to * in_features_;
  const uint8_t* bytes = from.row(row);
  const uint8_t* scales = bytes + from.value_bytes();
  const uint8_t* minima = scales + 2 * theirs.count(from.columns);
  // Values around a zero in the middle move with it, unless a minimum says where zero is.
  const int shift = groups_.minima || theirs.minima ? 0 : groups_.zero() - theirs.zero();
  for (int64_t k = 0; k < from.columns; ++k) {
    values[k] = static_cast<uint8_t>(from.value(bytes, k) + shift);
  }
  const int64_t count = groups_.count(in_features_);
  for (int64_t k = 0; k < from.columns; k += groups_.size) {
    const int64_t group = k / theirs.size;
    const int64_t at = to * count + k / groups_.size;
    const uint16_t scale = finite(half_at(scales, group), from.name);
    scales_[static_cast<size_t>(at)] = scale;
    if (!groups_.minima) continue;
    uint16_t minimum = 0;
    if (theirs.minima) {
      minimum = half_at(minima, group);
    } else {
      float value = as_float(scale);
      value *= -static_cast<float>(theirs.zero());  // a power of two
      from_float32(&value, DType::kFloat16, &minimum, 1);
    }
    minima_[static_cast<size_t>(at)] = finite(minimum, from.name);
  }
}

GroupedWeight GroupedLayer::weight() const {
  return {values_.data(), scales_.data(), groups_.minima ? minima_.data() : nullptr};
}

}  // namespace packhorse
