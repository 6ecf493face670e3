#include "core/ggml_blocks.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/float_convert.h"
#include "core/format.h"
#include "packhorse/error.h"

namespace packhorse {
namespace {

uint16_t half_bits(const uint8_t* from) {
  uint16_t bits = 0;
  std::memcpy(&bits, from, sizeof(bits));
  return bits;
}

float half(const uint8_t* from) { return float16_to_float32(half_bits(from)); }

// Splits bytes: the low halves of all of them, then the high ones. A copy of a fixed number of
// them, which `to` cannot overlap, is what compilers turn into vector code.
template <size_t kCount>
void split_nibbles(const uint8_t* from, uint8_t* to) {
  std::array<uint8_t, kCount> bytes;
  std::memcpy(bytes.data(), from, kCount);
  for (size_t i = 0; i < kCount; ++i) to[i] = bytes[i] & 15;
  for (size_t i = 0; i < kCount; ++i) to[kCount + i] = static_cast<uint8_t>(bytes[i] >> 4);
}

// Adds bit i of a little-endian uint32 to value i, as its fifth bit.
void add_fifth_bits(const uint8_t* from, uint8_t* to) {
  for (int i = 0; i < 32; ++i) to[i] |= static_cast<uint8_t>((from[i / 8] >> i % 8 & 1) << 4);
}

void move(uint8_t by, uint8_t* values, int count) {
  for (int i = 0; i < count; ++i) values[i] = static_cast<uint8_t>(values[i] + by);
}

// One scale, perhaps one minimum behind it, and 32 values.
template <int32_t kBytes, int32_t kBits, bool kMinima>
struct SmallBlock {
  static constexpr BlockForm kForm = {32, kBytes, kBits, 32, kMinima};

  explicit SmallBlock(const uint8_t* block) : bytes(block) {}
  float scale(int) const { return half(bytes); }
  float minimum(int) const { return half(bytes + 2); }
  uint16_t scale_bits(int) const { return half_bits(bytes); }
  uint16_t minimum_bits(int) const { return half_bits(bytes + 2); }

  const uint8_t* bytes;
};

struct Q4Zero : SmallBlock<18, 4, false> {
  using SmallBlock::SmallBlock;
  void values(uint8_t* to) const { split_nibbles<16>(bytes + 2, to); }
};

struct Q4One : SmallBlock<20, 4, true> {
  using SmallBlock::SmallBlock;
  void values(uint8_t* to) const { split_nibbles<16>(bytes + 4, to); }
};

struct Q5Zero : SmallBlock<22, 8, false> {
  using SmallBlock::SmallBlock;
  void values(uint8_t* to) const {
    split_nibbles<16>(bytes + 6, to);
    add_fifth_bits(bytes + 2, to);
    move(128 - 16, to, 32);
  }
};

struct Q5One : SmallBlock<24, 8, true> {
  using SmallBlock::SmallBlock;
  void values(uint8_t* to) const {
    split_nibbles<16>(bytes + 8, to);
    add_fifth_bits(bytes + 4, to);
  }
};

struct Q8Zero : SmallBlock<34, 8, false> {
  using SmallBlock::SmallBlock;
  void values(uint8_t* to) const {
    std::copy_n(bytes + 2, 32, to);
    move(128, to, 32);
  }
};

// Eight groups of 32 values. Their scales and minima are integers of six bits, in 12 bytes from
// byte 4 on, times two numbers of the block. Groups 0 to 3 have theirs in the low six bits of bytes
// 0 to 3 (scales) and 4 to 7 (minima). Groups 4 to 7 have their low four bits in bytes 8 to 11 (the
// scale in the low half), and their upper two bits at the top of bytes 0 to 7.
template <int32_t kBytes, int32_t kBits>
struct LargeBlock {
  static constexpr BlockForm kForm = {256, kBytes, kBits, 32, true};

  explicit LargeBlock(const uint8_t* block)
      : bytes(block), scale_unit(half(block)), minimum_unit(half(block + 2)) {}
  int six_bits(int i, int which) const {
    const uint8_t* packed = bytes + 4;
    if (i < 4) return packed[4 * which + i] & 63;
    const int low = packed[4 + i] >> 4 * which & 15;
    return low | packed[4 * which + i - 4] >> 6 << 4;
  }
  float scale(int i) const { return static_cast<float>(six_bits(i, 0)) * scale_unit; }
  float minimum(int i) const { return -(static_cast<float>(six_bits(i, 1)) * minimum_unit); }
  uint16_t scale_bits(int i) const { return float32_to_float16(scale(i)); }
  uint16_t minimum_bits(int i) const { return float32_to_float16(minimum(i)); }

  const uint8_t* bytes;
  float scale_unit, minimum_unit;
};

struct Q4Large : LargeBlock<144, 4> {
  using LargeBlock::LargeBlock;
  void values(uint8_t* to) const {
    for (int i = 0; i < 4; ++i) split_nibbles<32>(bytes + 16 + 32 * i, to + 64 * i);
  }
};

struct Q5Large : LargeBlock<176, 8> {
  using LargeBlock::LargeBlock;
  void values(uint8_t* to) const {
    for (int i = 0; i < 4; ++i) split_nibbles<32>(bytes + 48 + 32 * i, to + 64 * i);
    for (int i = 0; i < 8; ++i) {
      for (int k = 0; k < 32; ++k) {
        to[32 * i + k] |= static_cast<uint8_t>((bytes[16 + k] >> i & 1) << 4);
      }
    }
  }
};

// Writes 256 values of two bits, of which a byte holds four that are 32 values apart.
void split_pairs(const uint8_t* from, uint8_t* to) {
  for (int i = 0; i < 256; ++i) {
    to[i] = static_cast<uint8_t>(from[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3);
  }
}

// Sixteen groups of 16 values. Their scales and minima are integers of four bits, one of each in a
// byte, times two numbers of the block.
struct Q2Large {
  static constexpr BlockForm kForm = {256, 84, 8, 16, true};

  explicit Q2Large(const uint8_t* block)
      : bytes(block), scale_unit(half(block + 80)), minimum_unit(half(block + 82)) {}
  float scale(int i) const { return static_cast<float>(bytes[i] & 15) * scale_unit; }
  float minimum(int i) const { return -(static_cast<float>(bytes[i] >> 4) * minimum_unit); }
  uint16_t scale_bits(int i) const { return float32_to_float16(scale(i)); }
  uint16_t minimum_bits(int i) const { return float32_to_float16(minimum(i)); }
  void values(uint8_t* to) const { split_pairs(bytes + 16, to); }

  const uint8_t* bytes;
  float scale_unit, minimum_unit;
};

// Sixteen groups of 16 values, whose third bits come first. Scales have six bits, less 32, times a
// number of the block: the low four are in the halves of bytes 0 to 7 of twelve, the upper two in
// the others, of which byte i has those of groups i, i + 4, i + 8 and i + 12.
struct Q3Large {
  static constexpr BlockForm kForm = {256, 110, 8, 16, false};

  explicit Q3Large(const uint8_t* block) : bytes(block), scale_unit(half(block + 108)) {}
  float scale(int i) const {
    const uint8_t* packed = bytes + 96;
    const int low = packed[i % 8] >> i / 8 * 4 & 15;
    const int top = packed[8 + i % 4] >> i / 4 * 2 & 3;
    return static_cast<float>((low | top << 4) - 32) * scale_unit;
  }
  float minimum(int) const { return 0; }
  uint16_t scale_bits(int i) const { return float32_to_float16(scale(i)); }
  uint16_t minimum_bits(int) const { return 0; }
  void values(uint8_t* to) const {
    split_pairs(bytes + 32, to);
    for (int i = 0; i < 256; ++i) {
      to[i] |= static_cast<uint8_t>((bytes[i % 32] >> i / 32 & 1) << 2);
    }
    move(128 - 4, to, 256);
  }

  const uint8_t* bytes;
  float scale_unit;
};

// Sixteen groups of 16 values, whose scales are int8 times a number of the block.
struct Q6Large {
  static constexpr BlockForm kForm = {256, 210, 8, 16, false};

  explicit Q6Large(const uint8_t* block) : bytes(block), scale_unit(half(block + 208)) {}
  float scale(int i) const {
    return static_cast<float>(static_cast<int8_t>(bytes[192 + i])) * scale_unit;
  }
  float minimum(int) const { return 0; }
  uint16_t scale_bits(int i) const { return float32_to_float16(scale(i)); }
  uint16_t minimum_bits(int) const { return 0; }
  void values(uint8_t* to) const {
    for (int part = 0; part < 2; ++part) {
      const uint8_t* top = bytes + 128 + 32 * part;
      uint8_t* out = to + 128 * part;
      split_nibbles<64>(bytes + 64 * part, out);
      for (int i = 0; i < 4; ++i) {
        for (int k = 0; k < 32; ++k) {
          out[32 * i + k] |= static_cast<uint8_t>((top[k] >> 2 * i & 3) << 4);
        }
      }
    }
    move(128 - 32, to, 256);
  }

  const uint8_t* bytes;
  float scale_unit;
};

// Calls visit(block type) with a block of the kind, whose bytes do not matter.
template <class Visit>
auto with_block(BlockKind kind, Visit visit) {
  static constexpr uint8_t kNone[256] = {};
  switch (kind) {
    case BlockKind::kQ4_0:
      return visit(Q4Zero(kNone));
    case BlockKind::kQ4_1:
      return visit(Q4One(kNone));
    case BlockKind::kQ5_0:
      return visit(Q5Zero(kNone));
    case BlockKind::kQ5_1:
      return visit(Q5One(kNone));
    case BlockKind::kQ8_0:
      return visit(Q8Zero(kNone));
    case BlockKind::kQ2K:
      return visit(Q2Large(kNone));
    case BlockKind::kQ3K:
      return visit(Q3Large(kNone));
    case BlockKind::kQ4K:
      return visit(Q4Large(kNone));
    case BlockKind::kQ5K:
      return visit(Q5Large(kNone));
    case BlockKind::kQ6K:
      return visit(Q6Large(kNone));
  }
  throw InvalidArgument(concat("kind of blocks ", static_cast<int>(kind), " is not known"));
}

constexpr std::array kNames = {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0",
                               "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"};  // as in BlockKind

}  // namespace

BlockForm form_of(BlockKind kind) {
  return with_block(kind, [](const auto& block) { return block.kForm; });
}

const char* name_of(BlockKind kind) {
  form_of(kind);  // refuses numbers that are no kind
  return kNames[static_cast<size_t>(kind)];
}

BlockKind parse_block_kind(std::string_view name) {
  const auto* const found = std::find(kNames.begin(), kNames.end(), name);
  if (found != kNames.end()) return static_cast<BlockKind>(found - kNames.begin());
  throw InvalidArgument(concat("kind of blocks '", name, "' is not known; supported: Q4_0, Q4_1, ",
                               "Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K"));
}

void read_blocks(BlockKind kind, const uint8_t* from, int64_t count, uint8_t* values,
                 uint16_t* scales, uint16_t* minima) {
  with_block(kind, [&](const auto& of_kind) {
    using Block = std::decay_t<decltype(of_kind)>;
    constexpr BlockForm form = Block::kForm;
    for (int64_t i = 0; i < count; ++i, from += form.bytes, values += form.elements) {
      const Block block(from);
      block.values(values);
      for (int group = 0; group < form.elements / form.group; ++group) {
        *scales++ = block.scale_bits(group);
        if (form.minima) *minima++ = block.minimum_bits(group);
      }
    }
  });
}

void decode_blocks(BlockKind kind, const uint8_t* from, int64_t count, float* to) {
  with_block(kind, [&](const auto& of_kind) {
    using Block = std::decay_t<decltype(of_kind)>;
    constexpr BlockForm form = Block::kForm;
    constexpr int zero = form.minima ? 0 : 1 << (form.bits - 1);
    std::array<uint8_t, form.elements> values;
    for (int64_t i = 0; i < count; ++i, from += form.bytes) {
      const Block block(from);
      block.values(values.data());
      for (int group = 0; group < form.elements / form.group; ++group, to += form.group) {
        const float scale = block.scale(group);
        const float minimum = form.minima ? block.minimum(group) : 0;
        const uint8_t* q = values.data() + group * form.group;
        for (int k = 0; k < form.group; ++k) {
          const float product = scale * static_cast<float>(q[k] - zero);
          to[k] = form.minima ? product + minimum : product;
        }
      }
    }
  });
}

}  // namespace packhorse
