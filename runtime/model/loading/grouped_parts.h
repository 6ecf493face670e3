// Layers whose weights are quantised in groups: the form that several parts of a layer take
// together, and the parts brought into it. Nothing is rounded on the way.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/math.h"
#include "model/loading/tensor_reader.h"
#include "ops/args/weight_groups.h"

namespace packhorse {

/// The form that holds the values of both exactly. Both are ordered or neither.
WeightGroups common_groups(const WeightGroups& a, const WeightGroups& b);

/// A matrix of the source in groups. It is quantised in blocks (TensorBlocks) of the same form, or
/// uint8 [rows, bytes of a row]. Such a row is its values, one byte each or, of 4 bits, two in a
/// byte with the even column in the low half; then its scales and, where there are any, its minima,
/// as little-endian float16.
struct GroupedTensor {
  /// Throws InvalidArgument unless the tensor exists and has this shape.
  GroupedTensor(const TensorReader& reader, const std::string& name, int64_t rows, int64_t columns,
                const WeightGroups& groups);

  int64_t value_bytes() const { return groups.bits == 4 ? ceil_div(columns, 2) : columns; }
  /// Reads row i: q [columns], and bits of float16 of scales and minima, [groups] each; `minima` is
  /// not written where there are none. Throws InvalidArgument for those that are not finite.
  void read_row(int64_t i, uint8_t* values, uint16_t* scales, uint16_t* minima) const;
  /// Writes the values that row i stands for, [columns]. Throws as read_row.
  void decode_row(int64_t i, float* to) const;

  std::string name;
  int64_t columns;
  WeightGroups groups;
  SourceTensor tensor;
};

/// Reads the order of a layer's input features, int32 [in_features]: column j of the matrix is for
/// feature order[j]. Throws InvalidArgument unless the tensor exists, has this shape and names
/// every feature once.
std::vector<int32_t> read_input_order(const TensorReader& reader, const std::string& name,
                                      int64_t in_features);

/// A layer that is put together row by row, in memory that the next layer takes over.
class GroupedLayer {
 public:
  /// Begins a layer. Rows that nothing is put into are zeros, unless all columns of all rows will
  /// be `full`.
  void begin(int64_t out_features, int64_t in_features, const WeightGroups& groups, bool full);

  /// Writes row `row` of `from` to row `to`; different rows may be written at once. Throws
  /// InvalidArgument for scales and minima that are not finite.
  void put_row(const GroupedTensor& from, int64_t row, int64_t to);
  GroupedWeight weight() const;

 private:
  int64_t in_features_ = 0;
  WeightGroups groups_;
  std::vector<uint8_t> values_;
  std::vector<uint16_t> scales_, minima_;
};

}  // namespace packhorse
