// GPU layout of a weight that is quantised in groups (WeightGroups), and the split of the sum over
// its input features. These are pure host functions.
//
// A weight is a sequence of strips of 16 output features, and a strip is a sequence of blocks of
// 128 input features. A block is:
//
// - the scales of its groups, a row for each group (one row where a group is as large as the block
//   or larger): for g from 0 to 7 the scales of features g and g + 8 of the strip, each followed,
//   where there are minima, by the minima of both;
// - the values, in chunks of 512 bytes: 16 bytes for each lane of a warp, the lane's part of the A
//   operand of mma.m16n8k16 for several steps of 16 input features, 4 steps of 4-bit or 2 of 8-bit
//   values. wgmma takes A from registers in the same order, a strip in each warp (PTX ISA, "Matrix
//   Fragments").
//
// The part of a step is four pairs: input features c and c + 1 of output feature g, the same of g +
// 8, features c + 8 and c + 9 of g, the same of g + 8, where g is lane / 4 and c is lane % 4 * 2.
// With 4 bits the part is one word, with pair r in bits 4 r and 16 + 4 r. With 8 bits it is two
// words, with pair r in two neighbouring bytes.
//
// Padding past the weight's features has scales and minima of zero, so its values are zeros.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/float_convert.h"
#include "core/format.h"
#include "core/math.h"
#include "ops/args/weight_groups.h"
#include "packhorse/error.h"

namespace packhorse::cuda {

inline constexpr int kW4a16Strip = 16;          // output features of a strip
inline constexpr int kW4a16Block = 128;         // input features of a block
inline constexpr int kW4a16Steps = 8;           // steps of 16 input features in a block
inline constexpr int kW4a16Chunk = 512;         // bytes of a chunk: 16 for each lane
inline constexpr int64_t kMostW4a16Splits = 8;  // most parts of a sum

/// The sizes of a packed weight [n, k].
struct W4a16Layout {
  int32_t strips;
  int32_t blocks;        // blocks of a strip
  int32_t rows;          // rows of scales in a block
  int32_t header_bytes;  // bytes of a block's scales and minima
  int32_t block_bytes;

  size_t bytes() const {
    return static_cast<size_t>(strips) * static_cast<size_t>(blocks) *
           static_cast<size_t>(block_bytes);
  }
};

inline W4a16Layout w4a16_layout(int64_t n, int64_t k, const WeightGroups& groups) {
  W4a16Layout layout;
  layout.strips = static_cast<int32_t>(ceil_div(n, kW4a16Strip));
  layout.blocks = static_cast<int32_t>(ceil_div(k, kW4a16Block));
  layout.rows = groups.size < kW4a16Block ? kW4a16Block / groups.size : 1;
  layout.header_bytes = layout.rows * kW4a16Strip * 2 * (groups.minima ? 2 : 1);
  layout.block_bytes = layout.header_bytes + kW4a16Strip * kW4a16Block * groups.bits / 8;
  return layout;
}

/// Split of the sum over k: into `splits` parts of `blocks` blocks, the last of which may have
/// fewer. Each part is summed in order, 16 features at a time, and the parts are added in order.
struct W4a16Split {
  int32_t splits;
  int32_t blocks;
};

/// Returns the split, which depends on the shape of the weight alone, so that bits depend on
/// nothing else. Where few output features share the device, a chain of sums takes longer than
/// reading the weight, so sums are cut until each of 16 warps of 132 SMs has a part.
inline W4a16Split w4a16_split(int64_t n, int64_t k) {
  constexpr int64_t kMultiprocessors = 132;
  constexpr int64_t kWarps = 16;
  constexpr int64_t kLeastBlocks = 4;
  const int64_t strips = ceil_div(n, kW4a16Strip);
  const int64_t share = ceil_div(strips, kMultiprocessors);
  const int64_t blocks = std::max<int64_t>(1, ceil_div(k, kW4a16Block));
  const int64_t wanted = std::clamp<int64_t>(kWarps / share, 1, kMostW4a16Splits);
  const int64_t splits = std::clamp<int64_t>(blocks / kLeastBlocks, 1, wanted);
  int64_t each = ceil_div(blocks, splits);
  if (each > 1) each += each % 2;  // kernels copy blocks in pairs
  return {static_cast<int32_t>(ceil_div(blocks, each)), static_cast<int32_t>(each)};
}

/// Packs strip `strip` of a weight [n, k] to the W4a16Layout::blocks blocks at `to`.
inline void pack_groups_strip(const GroupedWeight& weight, int64_t n, int64_t k,
                              const WeightGroups& groups, int64_t strip, uint8_t* to) {
  const W4a16Layout layout = w4a16_layout(n, k, groups);
  const int64_t first = strip * kW4a16Strip;
  const int64_t count = groups.count(k);
  const auto put_halves = [&](const uint16_t* from, int64_t group, int g) {
    for (const int64_t feature : {first + g, first + g + 8}) {
      const bool there = feature < n && group < count;
      const uint16_t bits = there ? from[feature * count + group] : uint16_t{0};
      std::memcpy(to, &bits, sizeof(bits));
      to += sizeof(bits);
    }
  };
  const auto value = [&](int64_t feature, int64_t input) -> uint32_t {
    return feature < n && input < k ? weight.values[feature * k + input] : 0;
  };
  for (int64_t block = 0; block < layout.blocks; ++block) {
    const int64_t begin = block * kW4a16Block;
    for (int32_t row = 0; row < layout.rows; ++row) {
      const int64_t group = begin / groups.size + row;
      for (int g = 0; g < 8; ++g) {
        put_halves(weight.scales, group, g);
        if (groups.minima) put_halves(weight.minima, group, g);
      }
    }
    const int steps = 16 / groups.bits;  // steps of a chunk
    for (int step = 0; step < kW4a16Steps; step += steps) {
      for (int lane = 0; lane < 32; ++lane) {
        for (int s = step; s < step + steps; ++s) {
          uint64_t part = 0;
          for (int r = 0; r < 4; ++r) {
            for (int e = 0; e < 2; ++e) {
              const int64_t feature = first + lane / 4 + r % 2 * 8;
              const int64_t input = begin + s * 16 + lane % 4 * 2 + r / 2 * 8 + e;
              const int shift = groups.bits == 4 ? 4 * r + 16 * e : 16 * r + 8 * e;
              part |= uint64_t{value(feature, input)} << shift;
            }
          }
          const auto size = static_cast<size_t>(groups.bits);  // bytes of a lane's 8 values
          std::memcpy(to, &part, size);
          to += size;
        }
      }
    }
  }
}

/// Throws InvalidArgument where a value of one of `count` groups could exceed float16's range.
inline void check_groups_range(const GroupedWeight& weight, int64_t count,
                               const WeightGroups& groups) {
  const float most = groups.minima ? static_cast<float>((1 << groups.bits) - 1)
                                   : static_cast<float>(groups.zero());
  for (int64_t i = 0; i < count; ++i) {
    const float low = groups.minima ? float16_to_float32(weight.minima[i]) : 0;
    const float high = low + most * float16_to_float32(weight.scales[i]);
    if (std::abs(high) < 65520.0f) continue;  // it rounds to 65504
    throw InvalidArgument(concat("weights: a group of ", groups.bits, " bits has the scale ",
                                 float16_to_float32(weight.scales[i]), ", and values up to ", high,
                                 ", beyond float16's 65504; load this model as bfloat16"));
  }
}

}  // namespace packhorse::cuda
