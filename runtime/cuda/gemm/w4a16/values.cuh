// Decodes the values of a weight in groups to float16, in registers, as operands of tensor cores.
// This file compiles as host code too, so that tests on a CPU can compare every value.
//
// A value q of a group stands for round(scale * (q - 2^(bits - 1))), with minima for round(scale *
// q + minimum): float16 arithmetic that rounds once, at the end. The bits 0x6400 | q are the
// float16 number 1024 + q, and 0x6400 | q << 4 are 1024 + 16 q. From either, one exact instruction
// for two values gives q, or q - 2^(bits - 1).
#pragma once

#include <cstdint>
#include <cstring>

#include "core/float_convert.h"

#if defined(__CUDACC__)
#include <cuda_fp16.h>
#define PACKHORSE_GROUPS_FUNCTION __host__ __device__ __forceinline__
#define PACKHORSE_GROUPS_UNROLL _Pragma("unroll")
#else
#define PACKHORSE_GROUPS_FUNCTION inline
#define PACKHORSE_GROUPS_UNROLL
#endif

namespace packhorse::cuda {

// Arithmetic on two float16 numbers in a word. The device has an instruction for each function; the
// host computes the same bits.
#if !defined(__CUDA_ARCH__)
namespace w4a16_host {

inline double number(uint32_t half) {
  const auto bits = static_cast<uint16_t>(half);
  return static_cast<double>(float16_to_float32(bits));
}
/// Rounds once: the step over float32 rounds to odd, which keeps the bits that the second rounding
/// looks at.
inline uint32_t rounded(double value) {
  auto nearest = static_cast<float>(value);
  const double difference = value - static_cast<double>(nearest);
  if (difference != 0) {
    uint32_t bits;
    std::memcpy(&bits, &nearest, sizeof(bits));
    if (bits % 2 == 0) bits = (difference > 0) == (nearest > 0) ? bits + 1 : bits - 1;
    std::memcpy(&nearest, &bits, sizeof(bits));
  }
  return float32_to_float16(nearest);
}
template <class Function>
uint32_t of_pairs(uint32_t a, uint32_t b, uint32_t c, Function function) {
  const uint32_t low = rounded(function(number(a), number(b), number(c)));
  const uint32_t high = rounded(function(number(a >> 16), number(b >> 16), number(c >> 16)));
  return low | high << 16;
}

}  // namespace w4a16_host
#endif

#if defined(__CUDA_ARCH__)
__device__ __forceinline__ __half2 as_half2(uint32_t bits) {
  return *reinterpret_cast<const __half2*>(&bits);
}
__device__ __forceinline__ uint32_t bits_of(__half2 pair) {
  return *reinterpret_cast<const uint32_t*>(&pair);
}
#endif

PACKHORSE_GROUPS_FUNCTION uint32_t subtract_pairs(uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__)
  return bits_of(__hsub2(as_half2(a), as_half2(b)));
#else
  return w4a16_host::of_pairs(a, b, 0, [](double x, double y, double) { return x - y; });
#endif
}
PACKHORSE_GROUPS_FUNCTION uint32_t multiply_pairs(uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__)
  return bits_of(__hmul2(as_half2(a), as_half2(b)));
#else
  return w4a16_host::of_pairs(a, b, 0, [](double x, double y, double) { return x * y; });
#endif
}
PACKHORSE_GROUPS_FUNCTION uint32_t multiply_add_pairs(uint32_t a, uint32_t b, uint32_t c) {
#if defined(__CUDA_ARCH__)
  return bits_of(__hfma2(as_half2(a), as_half2(b), as_half2(c)));
#else
  return w4a16_host::of_pairs(a, b, c, [](double x, double y, double z) { return x * y + z; });
#endif
}
/// Returns four bytes, chosen by the hexadecimal digits of `selector` from the lowest on: digits 0
/// to 3 are the bytes of a, 4 to 7 those of b (PTX ISA, prmt).
PACKHORSE_GROUPS_FUNCTION uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selector) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(a, b, selector);
#else
  const uint64_t all = uint64_t{b} << 32 | a;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t from = selector >> (4 * i) & 7;
    result |= static_cast<uint32_t>(all >> (8 * from) & 0xff) << (8 * i);
  }
  return result;
#endif
}

/// Returns (a & mask) | pattern by one instruction, where the compiler would use two.
PACKHORSE_GROUPS_FUNCTION uint32_t masked_or(uint32_t a, uint32_t mask, uint32_t pattern) {
#if defined(__CUDA_ARCH__)
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(a), "r"(mask), "r"(pattern));
  return result;
#else
  return (a & mask) | pattern;
#endif
}

/// Scales and minima of a lane's two output features of a strip, each in both halves of a word.
struct W4a16Scales {
  uint32_t scale[2];
  uint32_t minimum[2];
};

/// Returns a lane's scales and minima. `words`: the entry for lane / 4 in a row of scales, one
/// word, or with minima two (gemm/w4a16/layout.h).
template <bool kMinima>
PACKHORSE_GROUPS_FUNCTION W4a16Scales w4a16_scales(const uint32_t* words) {
  W4a16Scales result;
  PACKHORSE_GROUPS_UNROLL
  for (int h = 0; h < 2; ++h) {
    const uint32_t selector = h == 0 ? 0x1010 : 0x3232;
    result.scale[h] = permute_bytes(words[0], 0, selector);
    result.minimum[h] = kMinima ? permute_bytes(words[kMinima ? 1 : 0], 0, selector) : 0;
  }
  return result;
}

/// Decodes a lane's four pairs of a step of 16 input features from its kBits / 4 `words`
/// (gemm/w4a16/layout.h).
template <int kBits, bool kMinima>
PACKHORSE_GROUPS_FUNCTION void unpack_groups(const uint32_t* words, const W4a16Scales& scales,
                                             uint32_t (&pairs)[4]) {
  static_assert(kBits == 4 || kBits == 8);
  constexpr uint32_t kThousand = 0x64006400;  // 1024, twice
  uint32_t values[4];                         // q, or q - 2^(kBits - 1)
  if constexpr (kBits == 4) {
    constexpr uint32_t kLow = kMinima ? kThousand : 0x64086408;    // 1024, or 1032
    constexpr uint32_t kHigh = kMinima ? 0xd400d400 : 0xd480d480;  // -64, or -72
    constexpr uint32_t kSixteenth = 0x2c002c00;
    PACKHORSE_GROUPS_UNROLL
    for (int i = 0; i < 4; i += 2) {
      const uint32_t word = words[0] >> (4 * i);
      values[i] = subtract_pairs(masked_or(word, 0x000f000f, kThousand), kLow);
      values[i + 1] = multiply_add_pairs(masked_or(word, 0x00f000f0, kThousand), kSixteenth, kHigh);
    }
  } else {
    constexpr uint32_t kMiddle = kMinima ? kThousand : 0x64806480;  // 1024, or 1152
    PACKHORSE_GROUPS_UNROLL
    for (int i = 0; i < 4; ++i) {
      const uint32_t selector = i % 2 == 0 ? 0x5150 : 0x5352;
      values[i] = subtract_pairs(permute_bytes(words[i / 2], kThousand, selector), kMiddle);
    }
  }
  PACKHORSE_GROUPS_UNROLL
  for (int i = 0; i < 4; ++i) {
    const uint32_t scale = scales.scale[i % 2];
    pairs[i] = kMinima ? multiply_add_pairs(values[i], scale, scales.minimum[i % 2])
                       : multiply_pairs(values[i], scale);
  }
}

}  // namespace packhorse::cuda
