// Tests the blocks of GGUF files against ggml's own loops, transcribed value by value.
#include "core/ggml_blocks.h"

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "core/float_convert.h"
#include "packhorse/error.h"
#include "test.h"

namespace packhorse {
namespace {

float half_at(const uint8_t* from) {
  uint16_t bits = 0;
  std::memcpy(&bits, from, sizeof(bits));
  return float16_to_float32(bits);
}

// get_scale_min_k4 of ggml.
void scale_and_minimum(int j, const uint8_t* q, int& scale, int& minimum) {
  if (j < 4) {
    scale = q[j] & 63;
    minimum = q[j + 4] & 63;
  } else {
    scale = (q[j + 4] & 0xF) | ((q[j - 4] >> 6) << 4);
    minimum = (q[j + 4] >> 4) | ((q[j] >> 6) << 4);
  }
}

// Value i of a block.
float value_of(BlockKind kind, const uint8_t* b, int i) {
  const auto nibble = [&](const uint8_t* q, int low_values) {
    return i < low_values ? q[i] & 15 : q[i - low_values] >> 4;
  };
  const auto fifth = [&](const uint8_t* bits) { return (bits[i / 8] >> (i % 8) & 1) << 4; };
  const float d = half_at(b);
  switch (kind) {
    case BlockKind::kQ4_0:
      return static_cast<float>(nibble(b + 2, 16) - 8) * d;
    case BlockKind::kQ4_1:
      return static_cast<float>(nibble(b + 4, 16)) * d + half_at(b + 2);
    case BlockKind::kQ5_0:
      return static_cast<float>((nibble(b + 6, 16) | fifth(b + 2)) - 16) * d;
    case BlockKind::kQ5_1:
      return static_cast<float>(nibble(b + 8, 16) | fifth(b + 4)) * d + half_at(b + 2);
    case BlockKind::kQ8_0:
      return static_cast<float>(static_cast<int8_t>(b[2 + i])) * d;
    case BlockKind::kQ2K:
    case BlockKind::kQ3K: {
      const int part = i / 128;
      const int j = i % 128 / 32;
      const int l = i % 32;
      const int is = 8 * part + 2 * j + l / 16;  // group
      if (kind == BlockKind::kQ2K) {
        const int q = b[16 + 32 * part + l] >> (2 * j) & 3;
        return half_at(b + 80) * static_cast<float>(b[is] & 15) * static_cast<float>(q) -
               half_at(b + 82) * static_cast<float>(b[is] >> 4);
      }
      const int low = is < 8 ? b[96 + is] & 15 : b[96 + is - 8] >> 4;
      const int scale = (low | (b[104 + is % 4] >> (2 * (is / 4)) & 3) << 4) - 32;
      const int q = (b[32 + 32 * part + l] >> (2 * j) & 3) - (b[l] & 1 << (4 * part + j) ? 0 : 4);
      return half_at(b + 108) * static_cast<float>(scale) * static_cast<float>(q);
    }
    case BlockKind::kQ4K:
    case BlockKind::kQ5K: {
      int scale = 0;
      int minimum = 0;
      scale_and_minimum(i / 32, b + 4, scale, minimum);
      const bool five = kind == BlockKind::kQ5K;
      const uint8_t byte = b[(five ? 48 : 16) + i / 64 * 32 + i % 32];
      int q = i % 64 < 32 ? byte & 15 : byte >> 4;
      if (five) q += (b[16 + i % 32] >> (i / 32) & 1) * 16;
      return static_cast<float>(scale) * d * static_cast<float>(q) -
             static_cast<float>(minimum) * half_at(b + 2);
    }
    case BlockKind::kQ6K: {
      const int l = i % 32;
      const int quarter = i % 128 / 32;
      const uint8_t* low = b + i / 128 * 64 + l + (quarter % 2) * 32;
      const uint8_t* high = b + 128 + i / 128 * 32 + l;
      const int q = (quarter < 2 ? *low & 15 : *low >> 4) | (*high >> (2 * quarter) & 3) << 4;
      const auto scale = static_cast<float>(static_cast<int8_t>(b[192 + i / 16]));
      return scale * half_at(b + 208) * static_cast<float>(q - 32);
    }
  }
  return 0;
}

// Places of the float16 numbers of a block, which must not be NaN here.
std::vector<int> halves_of(BlockKind kind) {
  if (kind == BlockKind::kQ2K) return {80, 82};
  if (kind == BlockKind::kQ3K) return {108};
  if (kind == BlockKind::kQ6K) return {208};
  return form_of(kind).minima ? std::vector<int>{0, 2} : std::vector<int>{0};
}

std::vector<uint8_t> random_blocks(BlockKind kind, int count) {
  std::mt19937 random(7);
  std::vector<uint8_t> blocks(static_cast<size_t>(count * form_of(kind).bytes));
  for (uint8_t& byte : blocks) byte = static_cast<uint8_t>(random());
  for (int i = 0; i < count; ++i) {
    for (const int at : halves_of(kind)) {
      const uint16_t bits = float32_to_float16(static_cast<float>(random() % 2001) * 1e-3f - 1);
      std::memcpy(blocks.data() + i * form_of(kind).bytes + at, &bits, sizeof(bits));
    }
  }
  return blocks;
}

const std::vector<std::string> kKinds = {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0",
                                         "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"};

TEST(ggml_blocks_are_decoded_as_ggml_decodes_them) {
  constexpr int kCount = 5;
  for (const std::string& name : kKinds) {
    const BlockKind kind = parse_block_kind(name);
    CHECK(name_of(kind) == name);
    const BlockForm form = form_of(kind);
    const std::vector<uint8_t> blocks = random_blocks(kind, kCount);
    std::vector<float> found(static_cast<size_t>(kCount * form.elements));
    decode_blocks(kind, blocks.data(), kCount, found.data());
    for (int i = 0; i < kCount * form.elements; ++i) {
      const uint8_t* block = blocks.data() + i / form.elements * form.bytes;
      CHECK(found[size_t(i)] == value_of(kind, block, i % form.elements));
    }
  }
}

TEST(ggml_blocks_in_groups_are_their_values) {
  constexpr int kCount = 5;
  for (const std::string& name : kKinds) {
    const BlockKind kind = parse_block_kind(name);
    const BlockForm form = form_of(kind);
    const std::vector<uint8_t> blocks = random_blocks(kind, kCount);
    const auto size = static_cast<size_t>(kCount * form.elements);
    std::vector<uint8_t> values(size);
    std::vector<uint16_t> scales(size / size_t(form.group)), minima(scales.size());
    read_blocks(kind, blocks.data(), kCount, values.data(), scales.data(),
                form.minima ? minima.data() : nullptr);
    const int zero = form.minima ? 0 : 1 << (form.bits - 1);
    for (size_t i = 0; i < size; ++i) {
      const size_t group = i / size_t(form.group);
      const float scale = float16_to_float32(scales[group]);
      const float minimum = form.minima ? float16_to_float32(minima[group]) : 0;
      const float value = scale * static_cast<float>(values[i] - zero) + minimum;
      const uint8_t* block = blocks.data() + int(i) / form.elements * form.bytes;
      const float expected = value_of(kind, block, int(i) % form.elements);
      // Scales that are products are rounded to 11 bits, and so are minima.
      const float error = std::ldexp(std::abs(scale * 64) + std::abs(minimum), -10);
      CHECK(values[i] < 1 << form.bits);
      CHECK(std::abs(value - expected) <= (form.elements == 32 ? 0 : error));
    }
  }
}

TEST(ggml_blocks_of_unknown_kinds) {
  CHECK_THROWS_WITH(parse_block_kind("IQ3_S"),
                    "kind of blocks 'IQ3_S' is not known; supported: Q4_0");
  CHECK_THROWS_WITH(form_of(static_cast<BlockKind>(99)), "kind of blocks 99 is not known");
}

}  // namespace
}  // namespace packhorse
