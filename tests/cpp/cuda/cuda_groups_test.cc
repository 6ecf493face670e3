// Tests what CUDA makes of weights in groups, as far as it needs no GPU: the numbers that values
// stand for, the packed layout, and how sums are cut.
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/float_convert.h"
#include "cuda/gemm/w4a16/layout.h"
#include "cuda/gemm/w4a16/values.cuh"
#include "packhorse/error.h"
#include "test.h"

namespace packhorse::cuda {
namespace {

// The float16 that is nearest to a number, and of two the even one, by looking at its neighbours.
uint16_t nearest(double value) {
  const uint16_t guess = float32_to_float16(static_cast<float>(value));
  uint16_t best = guess;
  double least = std::numeric_limits<double>::infinity();
  for (const int step : {0, -1, 1}) {
    const auto near = static_cast<uint16_t>(guess + step);
    const double distance = std::abs(static_cast<double>(float16_to_float32(near)) - value);
    if (!(distance < least || (distance == least && near % 2 == 0))) continue;
    least = distance;
    best = near;
  }
  return best;
}

bool same(uint16_t a, uint16_t b) { return a == b || ((a | b) & 0x7fff) == 0; }

// Halves that are ordinary, tiny, subnormal, negative, zero.
const std::vector<float> kScales = {0.0123f, 1.0f / 3, 1e-4f, 3e-6f, 6e-8f, -0.05f, 0.0f, 200.0f};
const std::vector<float> kMinima = {-0.1f, 0.07f, -1e-4f, 3.3e-5f, 6e-8f, 0.0f, -800.0f};

// Unpacks a step in which every value is q, and compares it with round(scale * q + minimum).
template <int kBits, bool kHasMinima>
void check_value(uint32_t q, uint16_t scale, uint16_t minimum) {
  const uint32_t byte = kBits == 4 ? q | q << 4 : q;
  const uint32_t word = byte * 0x01010101u;
  const uint32_t words[2] = {word, word};
  // Halves the scale and the minimum of the lane's second feature, to tell it from the first.
  const auto half = [](uint16_t bits) { return float32_to_float16(float16_to_float32(bits) / 2); };
  const uint16_t scales[2] = {scale, half(scale)};
  const uint16_t minima[2] = {minimum, half(minimum)};
  const auto entry = [](const uint16_t (&two)[2]) { return two[0] | uint32_t{two[1]} << 16; };
  const uint32_t header[2] = {entry(scales), entry(minima)};
  uint32_t pairs[4];
  unpack_groups<kBits, kHasMinima>(words, w4a16_scales<kHasMinima>(header), pairs);
  for (int r = 0; r < 4; ++r) {
    const double s = static_cast<double>(float16_to_float32(scales[r % 2]));
    const double m = static_cast<double>(float16_to_float32(minima[r % 2]));
    const double exact = kHasMinima ? s * q + m : s * (static_cast<double>(q) - (1 << (kBits - 1)));
    for (const uint32_t found : {pairs[r] & 0xffff, pairs[r] >> 16}) {
      CHECK(same(static_cast<uint16_t>(found), nearest(exact)));
    }
  }
}

template <int kBits>
void check_values() {
  for (uint32_t q = 0; q < 1u << kBits; ++q) {
    for (const float scale : kScales) {
      check_value<kBits, false>(q, float32_to_float16(scale), 0);
      for (const float minimum : kMinima) {
        check_value<kBits, true>(q, float32_to_float16(scale), float32_to_float16(minimum));
      }
    }
  }
}

TEST(w4a16_values_are_rounded_once) {
  check_values<4>();
  check_values<8>();
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {  // minima far from their scales, too
    const auto scale = static_cast<uint16_t>(random() % 0x5000);
    const auto minimum = static_cast<uint16_t>(random() % 0x7000 | random() % 2 << 15);
    check_value<4, true>(random() % 16, scale, minimum);
    check_value<8, true>(random() % 256, scale, minimum);
    check_value<4, false>(random() % 16, scale, 0);
    check_value<8, false>(random() % 256, scale, 0);
  }
}

/// Reads a packed weight as a warp does, with the places of mma.m16n8k16's left operand.
template <int kBits, bool kHasMinima>
void check_layout(int64_t n, int64_t k, int32_t size) {
  const WeightGroups groups{kBits, size, kHasMinima};
  const int64_t count = groups.count(k);
  std::mt19937 random(static_cast<uint32_t>(n * 1000 + k));
  std::vector<uint8_t> values(static_cast<size_t>(n * k));
  std::vector<uint16_t> scales(static_cast<size_t>(n * count));
  std::vector<uint16_t> minima(scales.size());
  for (uint8_t& value : values) value = static_cast<uint8_t>(random() % (1u << kBits));
  for (uint16_t& bits : scales) bits = static_cast<uint16_t>(0x2000 + random() % 0x400);
  for (uint16_t& bits : minima) bits = static_cast<uint16_t>(0xa800 + random() % 0x400);
  const GroupedWeight weight{values.data(), scales.data(), kHasMinima ? minima.data() : nullptr};
  const W4a16Layout layout = w4a16_layout(n, k, groups);
  CHECK(layout.block_bytes % 16 == 0 && layout.header_bytes % 16 == 0);
  const size_t strip_bytes = layout.bytes() / static_cast<size_t>(layout.strips);
  std::vector<uint8_t> packed(strip_bytes + 16, 0xee);
  for (int64_t strip = 0; strip < layout.strips; ++strip) {
    pack_groups_strip(weight, n, k, groups, strip, packed.data());
    CHECK(packed[strip_bytes] == 0xee);
    for (int64_t at = 0; at < layout.blocks * kW4a16Steps * 32; ++at) {
      const auto lane = static_cast<int>(at % 32);
      const auto step = static_cast<int>(at / 32 % kW4a16Steps);
      const int64_t block = at / 32 / kW4a16Steps;
      const uint8_t* from = packed.data() + block * layout.block_bytes;
      uint32_t header[2] = {};
      std::memcpy(header,
                  from + step * layout.rows / kW4a16Steps * (kHasMinima ? 64 : 32) +
                      lane / 4 * (kHasMinima ? 8 : 4),
                  kHasMinima ? 8 : 4);
      uint32_t words[2] = {};
      constexpr int kChunkSteps = 16 / kBits;
      std::memcpy(words,
                  from + layout.header_bytes + step / kChunkSteps * kW4a16Chunk + lane * 16 +
                      step % kChunkSteps * kBits,
                  kBits);
      uint32_t pairs[4];
      unpack_groups<kBits, kHasMinima>(words, w4a16_scales<kHasMinima>(header), pairs);
      for (int i = 0; i < 8; ++i) {
        // PTX ISA: element i of A is in row g, or g + 8 for i of 2, 3, 6, 7, and in column c + i %
        // 2, from i = 4 on 8 further.
        const int64_t feature = strip * 16 + lane / 4 + (i % 4 >= 2 ? 8 : 0);
        const int64_t input =
            block * kW4a16Block + step * 16 + lane % 4 * 2 + i % 2 + (i >= 4 ? 8 : 0);
        const auto found = static_cast<uint16_t>(pairs[i / 2] >> (16 * (i % 2)));
        double expected = 0;
        if (feature < n && input < k) {
          const auto group = static_cast<size_t>(feature * count + input / size);
          const double q = values[static_cast<size_t>(feature * k + input)];
          const auto s = static_cast<double>(float16_to_float32(scales[group]));
          expected = kHasMinima ? s * q + static_cast<double>(float16_to_float32(minima[group]))
                                : s * (q - groups.zero());
        } else if (feature < n && input / size < count) {
          continue;  // what fills a group up meets zeros
        }
        CHECK(same(found, nearest(expected)));
      }
    }
  }
}

TEST(w4a16_layout_is_that_of_tensor_cores) {
  for (const auto& [n, k] : std::vector<std::pair<int64_t, int64_t>>{
           {8, 8}, {16, 128}, {40, 136}, {72, 264}, {24, 1000}}) {
    check_layout<4, false>(n, k, 32);
    check_layout<4, true>(n, k, 64);
    check_layout<4, false>(n, k, 128);
    check_layout<4, true>(n, k, 1024);
    check_layout<8, false>(n, k, 16);
    check_layout<8, true>(n, k, 16);
    check_layout<8, false>(n, k, 32);
    check_layout<8, true>(n, k, 128);
  }
}

TEST(groups_bytes) {
  // 4 bits, and a scale for 128 or a scale and a minimum for 32 values.
  CHECK(w4a16_layout(4096, 4096, {4, 128, false}).bytes() == 4096u * 4096 * 33 / 64);
  CHECK(w4a16_layout(4096, 4096, {4, 32, true}).bytes() == 4096u * 4096 * 5 / 8);
  CHECK(w4a16_layout(4096, 4096, {8, 32, false}).bytes() == 4096u * 4096 * 17 / 16);
}

TEST(groups_sums_are_cut_by_shape) {
  for (int64_t n = 8; n < 70000; n = n * 3 / 2 + 8) {
    for (int64_t k = 8; k < 60000; k = k * 3 / 2 + 8) {
      const int32_t blocks = w4a16_layout(n, k, {4, 32, false}).blocks;
      const W4a16Split split = w4a16_split(n, k);
      CHECK(split.splits >= 1 && split.splits <= kMostW4a16Splits);
      CHECK(split.splits * split.blocks >= blocks && (split.splits - 1) * split.blocks < blocks);
    }
  }
  const auto splits = [](int64_t n, int64_t k) { return w4a16_split(n, k).splits; };
  CHECK(splits(12288, 4096) == 2 && splits(4096, 4096) == 8 && splits(16384, 4096) == 2 &&
        splits(4096, 16384) == 8 && splits(50264, 4096) == 1 && splits(64, 64) == 1);
}

TEST(groups_beyond_float16_are_refused) {
  const uint16_t scale = float32_to_float16(600);
  const uint16_t minimum = float32_to_float16(60000);
  CHECK_THROWS_WITH(check_groups_range({nullptr, &scale, nullptr}, 1, {8, 32, false}),
                    "beyond float16's 65504");
  CHECK_THROWS_WITH(check_groups_range({nullptr, &scale, &minimum}, 1, {4, 32, true}),
                    "a group of 4 bits has the scale 600, and values up to 69000");
  check_groups_range({nullptr, &scale, nullptr}, 1, {4, 32, false});
}

}  // namespace
}  // namespace packhorse::cuda
