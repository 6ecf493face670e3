// Tensor maps and the copies that they describe (TMA).
#pragma once

#include <cstdint>

namespace emulated {

/// Contents of a CUtensorMap in the emulator.
struct TensorMap {
  static constexpr uint64_t kMagic = 0x70616d5f6f736e65;
  uint64_t magic;
  uint64_t base;
  uint64_t extents[5];
  uint64_t strides[4];  // bytes, of all dimensions but the innermost
  uint16_t box[5];
  uint8_t rank, element_bytes, swizzle;  // swizzle: bytes of its width, 0 without
  uint64_t box_bytes() const {
    uint64_t bytes = element_bytes;
    for (int i = 0; i < rank; ++i) bytes *= box[i];
    return bytes;
  }
};
static_assert(sizeof(TensorMap) <= 128);

/// The address to which a swizzle over so many bytes moves a byte of shared memory.
inline uint32_t swizzled_address(uint32_t address, int bytes) {
  const uint32_t mask = bytes == 128 ? 7 : bytes == 64 ? 3 : bytes == 32 ? 1 : 0;
  return address ^ ((address >> 7 & mask) << 4);
}

}  // namespace emulated
