#include "cpu/common/wide_groups.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "core/math.h"
#include "cpu/isa/gemm_kernels.h"

namespace packhorse::cpu {
namespace {

constexpr int64_t kStep = 4;      // input features of a column whose upper bits lie together
constexpr int64_t kQuarter = 16;  // input features of a column whose lower bits share a word
constexpr int64_t kWord = sizeof(uint32_t);
constexpr int64_t kStepBytes = kStep * kStripeColumns;
constexpr int64_t kUpperBytes = kWideBlock / kStep * kStepBytes;
constexpr int64_t kWordBytes = kWord * kStripeColumns;  // words of a quarter
constexpr int64_t kScaleBytes = sizeof(uint16_t) * kStripeColumns;
constexpr int64_t kGroupBytes = kScaleBytes + kUpperBytes + kWideBlock / kQuarter * kWordBytes;

constexpr float kLargest = 511.0f;
constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer

float float_of(uint32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// The upper half of the smallest bfloat16 that is not below a number, which is not negative.
uint16_t round_up_to_bfloat16(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>((bits + 0xffff) >> 16);
}

// The bit of a word at which the lower bits of a feature of a quarter begin.
int64_t place_of(int64_t feature) {
  return feature / kStep * 4 + feature % 2 * 2 + feature % kStep / 2 * 16;
}

// Quantises one group of one column and writes it; `to` is where the column's part of the group
// begins, without scales. Returns the scale.
uint16_t pack_group(const float* weight, int64_t count, uint8_t* to) {
  // Loops of a fixed length over integers are what compilers turn into vector code.
  std::array<float, kWideBlock> filled = {};
  if (count < kWideBlock) {
    std::copy_n(weight, count, filled.begin());
    weight = filled.data();
  }
  int32_t most = 0;  // bits of the largest magnitude: bits without a sign have the order of numbers
  for (int64_t i = 0; i < kWideBlock; ++i) {
    most = std::max(most, std::bit_cast<int32_t>(weight[i]) & 0x7fffffff);
  }
  const uint16_t scale = round_up_to_bfloat16(std::bit_cast<float>(most) / kLargest);
  const float step = float_of(static_cast<uint32_t>(scale) << 16);
  std::array<uint8_t, kWideBlock> upper = {};
  std::array<uint8_t, kWideBlock> lower = {};
  if (step > 0) {
    for (int64_t i = 0; i < kWideBlock; ++i) {
      const float rounded = weight[i] / step + kMagic - kMagic;
      const auto value = static_cast<int32_t>(std::clamp(rounded, -kLargest, kLargest));
      upper[static_cast<size_t>(i)] = static_cast<uint8_t>(value >> 2);
      lower[static_cast<size_t>(i)] = static_cast<uint8_t>(value & 3);
    }
  }
  uint8_t* words = to + kUpperBytes;
  for (int64_t quarter = 0; quarter < kWideBlock; quarter += kQuarter, words += kWordBytes) {
    uint32_t word = 0;
    for (int64_t i = quarter; i < quarter + kQuarter; i += kStep) {
      std::memcpy(to + i / kStep * kStepBytes, upper.data() + i, kStep);
      // Brings the bits of four features to their places (place_of).
      uint32_t four = 0;
      std::memcpy(&four, lower.data() + i, sizeof(four));
      word |= ((four | four >> 6) & 0x000f000f) << place_of(i % kQuarter);
    }
    std::memcpy(words, &word, sizeof(word));
  }
  return scale;
}

}  // namespace

int64_t wide_stripe_bytes(int64_t in_features) {
  return ceil_div(in_features, kWideBlock) * kGroupBytes;
}

void pack_wide_rows(const float* rows, int64_t first, int64_t count, int64_t in_features,
                    void* packed) {
  const int64_t bytes = wide_stripe_bytes(in_features);
  auto* stripe = static_cast<uint8_t*>(packed) + first / kStripeColumns * bytes;
  for (int64_t begin = 0; begin < count; begin += kStripeColumns, stripe += bytes) {
    const int64_t columns = std::min(kStripeColumns, count - begin);
    if (columns < kStripeColumns) std::fill_n(stripe, bytes, uint8_t{0});
    for (int64_t n = 0; n < columns; ++n) {
      const float* row = rows + (begin + n) * in_features;
      uint8_t* group = stripe;
      for (int64_t k = 0; k < in_features; k += kWideBlock, group += kGroupBytes) {
        const uint16_t scale = pack_group(row + k, std::min(kWideBlock, in_features - k),
                                          group + kScaleBytes + n * kWord);
        std::memcpy(group + n * static_cast<int64_t>(sizeof(scale)), &scale, sizeof(scale));
      }
    }
  }
}

int64_t read_wide_group(const void* packed, int64_t row, int64_t in_features, int64_t first,
                        float* values) {
  const int64_t column = row % kStripeColumns;
  const auto* group = static_cast<const uint8_t*>(packed) +
                      row / kStripeColumns * wide_stripe_bytes(in_features) +
                      first / kWideBlock * kGroupBytes;
  uint16_t bits = 0;
  std::memcpy(&bits, group + column * static_cast<int64_t>(sizeof(bits)), sizeof(bits));
  const float scale = float_of(static_cast<uint32_t>(bits) << 16);
  const int64_t count = std::min(kWideBlock, in_features - first);
  for (int64_t i = 0; i < count; ++i) {
    const uint8_t* of_column = group + kScaleBytes + column * kWord;
    const uint8_t upper = of_column[i / kStep * kStepBytes + i % kStep];
    uint32_t lower = 0;
    std::memcpy(&lower, of_column + kUpperBytes + i / kQuarter * kWordBytes, sizeof(lower));
    const auto low = static_cast<int32_t>(lower >> place_of(i % kQuarter) & 3);
    values[i] = scale * static_cast<float>(static_cast<int8_t>(upper) * 4 + low);
  }
  return count;
}

}  // namespace packhorse::cpu
