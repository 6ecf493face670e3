#include "model/loading/grouped_parts.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/float_convert.h"
#include "core/format.h"
#include "core/ggml_blocks.h"
#include "packhorse/error.h"

namespace packhorse {
namespace {

// Throws unless the numbers are finite.
void check_finite(const uint16_t* halves, int64_t count, const std::string& name) {
  bool finite = true;
  for (int64_t i = 0; i < count; ++i) finite &= (halves[i] & 0x7c00) != 0x7c00;
  if (finite) return;
  throw InvalidArgument(concat("weights: tensor '", name,
                               "' has a group with a scale or a minimum that does not fit float16; "
                               "load the model with dtype float32"));
}

// The minimum of a group around a zero in the middle: a power of two times the scale.
uint16_t minimum_of(uint16_t scale, int32_t zero) {
  const float value = float16_to_float32(scale) * -static_cast<float>(zero);
  return float32_to_float16(value);
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
  if (tensor.blocks != nullptr) {
    const BlockForm blocks = form_of(tensor.blocks->kind);
    if (tensor.rank == 2 && tensor.shape[0] == rows && tensor.shape[1] == columns &&
        blocks.bits == groups.bits && blocks.group == groups.size &&
        blocks.minima == groups.minima) {
      return;
    }
  }
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

void GroupedTensor::read_row(int64_t i, uint8_t* values, uint16_t* scales, uint16_t* minima) const {
  const int64_t count = groups.count(columns);
  if (tensor.blocks != nullptr) {
    const BlockKind kind = tensor.blocks->kind;
    read_blocks(kind, row_of(*tensor.blocks, i), columns / form_of(kind).elements, values, scales,
                minima);
  } else {
    const uint8_t* bytes = tensor.as<const uint8_t>() + i * tensor.shape[1];
    if (groups.bits == 8) {
      std::copy_n(bytes, columns, values);
    } else {
      for (int64_t k = 0; k < columns; ++k) {
        values[k] = static_cast<uint8_t>(bytes[k / 2] >> (k % 2 == 0 ? 0 : 4) & 15);
      }
    }
    const uint8_t* halves = bytes + value_bytes();
    const auto size = static_cast<size_t>(count) * sizeof(uint16_t);
    std::memcpy(scales, halves, size);
    if (groups.minima) std::memcpy(minima, halves + size, size);
  }
  check_finite(scales, count, name);
  if (groups.minima) check_finite(minima, count, name);
}

void GroupedTensor::decode_row(int64_t i, float* to) const {
  const auto count = static_cast<size_t>(groups.count(columns));
  std::vector<uint8_t> values(static_cast<size_t>(columns));
  std::vector<uint16_t> halves(2 * count);
  read_row(i, values.data(), halves.data(), halves.data() + count);
  const int zero = groups.minima ? 0 : groups.zero();
  for (size_t group = 0; group < count; ++group) {
    const float scale = float16_to_float32(halves[group]);
    const float minimum = groups.minima ? float16_to_float32(halves[count + group]) : 0;
    const int64_t begin = static_cast<int64_t>(group) * groups.size;
    for (int64_t k = begin; k < std::min(begin + groups.size, columns); ++k) {
      to[k] = scale * static_cast<float>(values[static_cast<size_t>(k)] - zero) + minimum;
    }
  }
}

void GroupedLayer::begin(int64_t out_features, int64_t in_features, const WeightGroups& groups,
                         bool full) {
  in_features_ = in_features;
  groups_ = groups;
  const auto prepare = [&](auto& memory, int64_t size) {
    memory.resize(static_cast<size_t>(size));
    if (!full) std::fill(memory.begin(), memory.end(), 0);
  };
  prepare(values_, out_features * in_features);
  prepare(scales_, out_features * groups.count(in_features));
  prepare(minima_, groups.minima ? out_features * groups.count(in_features) : 0);
}

void GroupedLayer::put_row(const GroupedTensor& from, int64_t row, int64_t to) {
  const WeightGroups& theirs = from.groups;
  const int64_t count = groups_.count(in_features_);
  uint8_t* values = values_.data() + to * in_features_;
  uint16_t* scales = scales_.data() + to * count;
  uint16_t* minima = groups_.minima ? minima_.data() + to * count : nullptr;
  if (groups_.size == theirs.size && groups_.minima == theirs.minima) {
    from.read_row(row, values, scales, minima);
  } else {
    std::vector<uint16_t> halves(static_cast<size_t>(2 * theirs.count(from.columns)));
    const auto held = halves.begin() + theirs.count(from.columns);  // their minima
    from.read_row(row, values, halves.data(), &*held);
    for (int64_t k = 0; k < from.columns; k += groups_.size) {
      const auto group = static_cast<std::ptrdiff_t>(k / theirs.size);
      const uint16_t scale = halves[static_cast<size_t>(group)];
      scales[k / groups_.size] = scale;
      if (!groups_.minima) continue;
      minima[k / groups_.size] = theirs.minima ? held[group] : minimum_of(scale, theirs.zero());
    }
    if (groups_.minima) check_finite(minima, groups_.count(from.columns), from.name);
  }
  // Values around a zero in the middle move with it, unless a minimum says where zero is.
  const int shift = groups_.minima || theirs.minima ? 0 : groups_.zero() - theirs.zero();
  if (shift == 0) return;
  for (int64_t k = 0; k < from.columns; ++k) values[k] = static_cast<uint8_t>(values[k] + shift);
}

GroupedWeight GroupedLayer::weight() const {
  return {values_.data(), scales_.data(), groups_.minima ? minima_.data() : nullptr};
}

}  // namespace packhorse
