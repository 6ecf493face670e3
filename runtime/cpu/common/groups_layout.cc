#include "cpu/common/groups_layout.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "core/float_convert.h"
#include "core/math.h"
#include "cpu/common/wide_groups.h"

namespace packhorse::cpu {
namespace {

constexpr int64_t kStep = 4;  // input features whose products one instruction adds

int64_t stripes_of(int64_t out_features) { return ceil_div(out_features, kStripeColumns); }

// Packs a whole block of a column's values. The fixed number of steps lets the compiler unroll
// them.
template <int64_t kTogether>
void pack_block(const uint8_t* row, uint8_t* out) {
  for (int64_t k = 0; k < kGroupBlock; k += kTogether, out += kStep * kStripeColumns) {
    std::array<uint32_t, 2> words = {};
    std::memcpy(words.data(), row + k, kTogether);
    const uint32_t word = words[0] | words[1] << 4;  // values of 4 bits leave the others at zero
    std::memcpy(out, &word, sizeof(word));
  }
}

// Packs the values of input features [begin, end) of a stripe, whose columns begin at `first`.
// Returns the end of what was written. A column's features are read together and written apart,
// because what is written lies together in the cache.
uint8_t* pack_values(const GroupedWeight& weight, int64_t first, int64_t columns, int64_t begin,
                     int64_t end, int64_t in_features, bool halves, uint8_t* to) {
  // A step of 8 bits takes one byte for each of its features, one of 4 bits shares bytes with the
  // next step.
  const int64_t together = halves ? 2 * kStep : kStep;
  const int64_t bytes = ceil_div(end - begin, together) * kStep * kStripeColumns;
  if (columns < kStripeColumns) std::fill_n(to, bytes, uint8_t{0});
  for (int64_t n = 0; n < columns; ++n) {
    const uint8_t* row = weight.values + (first + n) * in_features;
    uint8_t* out = to + n * kStep;
    if (end - begin == kGroupBlock && end <= in_features) {
      halves ? pack_block<2 * kStep>(row + begin, out) : pack_block<kStep>(row + begin, out);
      continue;
    }
    for (int64_t k = begin; k < end; k += together, out += kStep * kStripeColumns) {
      std::array<uint8_t, 2 * kStep> values = {};
      if (k + together <= in_features) {
        std::copy_n(row + k, together, values.begin());
      } else if (k < in_features) {
        std::copy_n(row + k, in_features - k, values.begin());
      }
      std::array<uint32_t, 2> words;
      std::memcpy(words.data(), values.data(), sizeof(words));
      const uint32_t word = words[0] | words[1] << 4;
      std::memcpy(out, &word, sizeof(word));
    }
  }
  return to + bytes;
}

// Packs one stripe, the columns of which begin at `first`.
void pack_stripe(const GroupedWeight& weight, int64_t first, int64_t in_features,
                 int64_t out_features, const WeightGroups& groups, uint8_t* to) {
  const int64_t columns = std::min(kStripeColumns, out_features - first);
  const int64_t padded = group_blocks(in_features, false) * kGroupBlock;
  const int64_t count = groups.count(in_features);
  const auto put_header = [&](const uint16_t* from, int64_t group) {
    for (int64_t n = 0; n < kStripeColumns; ++n, to += sizeof(uint16_t)) {
      const bool there = n < columns && group < count;
      const uint16_t value = there ? from[(first + n) * count + group] : uint16_t{0};
      std::memcpy(to, &value, sizeof(value));
    }
  };
  const int64_t piece = std::min<int64_t>(groups.size, kGroupBlock);
  for (int64_t k = 0; k < padded; k += piece) {
    if (k % groups.size == 0) {
      put_header(weight.scales, k / groups.size);
      if (groups.minima) put_header(weight.minima, k / groups.size);
    }
    to = pack_values(weight, first, columns, k, k + piece, in_features, groups.bits == 4, to);
  }
}

}  // namespace

int64_t groups_stripe_bytes(int64_t in_features, const WeightGroups& groups) {
  if (groups.wide_inputs) return wide_stripe_bytes(in_features);
  const int64_t padded = group_blocks(in_features, false) * kGroupBlock;
  const int64_t header = kStripeColumns * (groups.minima ? 2 : 1) *
                         static_cast<int64_t>(sizeof(uint16_t)) * groups.count(padded);
  return header + kStripeColumns * padded * groups.bits / 8;
}

size_t packed_groups_bytes(int64_t in_features, int64_t out_features, const WeightGroups& groups) {
  return static_cast<size_t>(stripes_of(out_features) * groups_stripe_bytes(in_features, groups));
}

void pack_groupwise_weight(const GroupedWeight& weight, int64_t in_features, int64_t out_features,
                           const WeightGroups& groups, void* packed, ThreadPool& pool) {
  const int64_t bytes = groups_stripe_bytes(in_features, groups);
  pool.parallel_for(stripes_of(out_features), [&](int64_t stripe, int) {
    pack_stripe(weight, stripe * kStripeColumns, in_features, out_features, groups,
                static_cast<uint8_t*>(packed) + stripe * bytes);
  });
}

void pack_groupwise_rows(const GroupedWeight& rows, int64_t first, int64_t count,
                         int64_t in_features, const WeightGroups& groups, void* packed) {
  const int64_t bytes = groups_stripe_bytes(in_features, groups);
  auto* to = static_cast<uint8_t*>(packed) + first / kStripeColumns * bytes;
  for (int64_t begin = 0; begin < count; begin += kStripeColumns, to += bytes) {
    pack_stripe(rows, begin, in_features, count, groups, to);
  }
}

void pack_groupwise_rows(const float* rows, int64_t first, int64_t count, int64_t in_features,
                         void* packed) {
  pack_wide_rows(rows, first, count, in_features, packed);
}

void pack_groupwise_weight(const float* weight, int64_t in_features, int64_t out_features,
                           void* packed, ThreadPool& pool) {
  pool.parallel_for(stripes_of(out_features), [&](int64_t stripe, int) {
    const int64_t first = stripe * kStripeColumns;
    pack_groupwise_rows(weight + first * in_features, first,
                        std::min(kStripeColumns, out_features - first), in_features, packed);
  });
}

namespace {

// Writes scale * row `row` of a weight of 10 bits.
void read_scaled_wide_row(const LinearWeight& weight, int64_t row, float scale, DType dtype,
                          void* out) {
  std::array<float, kWideBlock> values = {};
  for (int64_t first = 0; first < weight.in_features; first += kWideBlock) {
    const int64_t count =
        read_wide_group(weight.data, row, weight.in_features, first, values.data());
    for (float& value : values) value *= scale;
    from_float32(values.data(), dtype,
                 static_cast<char*>(out) + static_cast<size_t>(first) * size_of(dtype),
                 static_cast<size_t>(count));
  }
}

}  // namespace

void read_groupwise_row(const LinearWeight& weight, int64_t row, float scale, DType dtype,
                        void* out) {
  if (weight.groups.wide_inputs) return read_scaled_wide_row(weight, row, scale, dtype, out);
  const WeightGroups& groups = weight.groups;
  const int64_t column = row % kStripeColumns;
  const auto* group = static_cast<const uint8_t*>(weight.data) +
                      row / kStripeColumns * groups_stripe_bytes(weight.in_features, groups);
  const auto half = [&](const uint8_t* from) {
    float value = 0;
    to_float32(from + column * static_cast<int64_t>(sizeof(uint16_t)), DType::kFloat16, &value, 1);
    return value;
  };
  const int64_t halves = kStripeColumns * static_cast<int64_t>(sizeof(uint16_t));
  const int64_t together = groups.bits == 4 ? 2 * kStep : kStep;  // as pack_stripe has them
  std::array<float, kGroupBlock> values;
  for (int64_t first = 0; first < weight.in_features; first += groups.size) {
    const float factor = half(group);
    const float minimum = groups.minima ? half(group + halves) : 0;
    const auto zero = static_cast<float>(groups.minima ? 0 : groups.zero());
    const uint8_t* packed = group + (groups.minima ? 2 : 1) * halves;
    const int64_t end = std::min<int64_t>(groups.size, weight.in_features - first);
    for (int64_t begin = 0; begin < end; begin += kGroupBlock) {
      const int64_t count = std::min(kGroupBlock, end - begin);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t at = begin + i;
        const int64_t step = at / together * kStripeColumns + column;
        const uint8_t byte = packed[step * kStep + at % kStep];
        const int q = groups.bits == 8 ? byte : at % together < kStep ? byte & 15 : byte >> 4;
        values[static_cast<size_t>(i)] =
            (factor * (static_cast<float>(q) - zero) + minimum) * scale;
      }
      from_float32(values.data(), dtype,
                   static_cast<char*>(out) + static_cast<size_t>(first + begin) * size_of(dtype),
                   static_cast<size_t>(count));
    }
    group = packed + kStripeColumns * groups.size * groups.bits / 8;
  }
}

}  // namespace packhorse::cpu
