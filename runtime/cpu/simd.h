// float32 vectors of the instruction set for which the including file is compiled.
//
// Only kernels_body.h includes this file, inside one namespace for each instruction set. Neither
// file uses inline functions of other headers: the linker keeps one copy of such a function, which
// might be the one compiled for instructions that this machine lacks.
//
// The compiler does not contract expressions to fused multiply-adds (-ffp-contract=off). Where one
// is meant, the code calls fma(), so that the bits of a row do not depend on what the optimiser did
// around it.

#if defined(__AVX512F__)
inline constexpr int kWidth = 16;
#elif defined(__AVX2__)
inline constexpr int kWidth = 8;
#else
inline constexpr int kWidth = 4;
#endif
// Vector registers. A tile of sums takes most of them.
#if defined(__AVX512F__) || defined(__ARM_NEON)
inline constexpr int kRegisters = 32;
#else
inline constexpr int kRegisters = 16;
#endif

using Vec = float __attribute__((vector_size(kWidth * 4)));
using IntVec = int32_t __attribute__((vector_size(kWidth * 4)));
using BitsVec = uint32_t __attribute__((vector_size(kWidth * 4)));  // sums may wrap
using bfloat16 = uint16_t;

[[gnu::always_inline]] static inline Vec splat(float value) { return value - Vec{}; }
[[gnu::always_inline]] static inline IntVec splat_int(int32_t value) { return value - IntVec{}; }

static inline IntVec lane_numbers() {
  IntVec lanes = {};
  for (int i = 0; i < kWidth; ++i) lanes[i] = i;
  return lanes;
}

static inline Vec load(const float* from) {
  Vec value;
  __builtin_memcpy(&value, from, sizeof(value));
  return value;
}

static inline IntVec load_int(const int32_t* from) {
  IntVec value;
  __builtin_memcpy(&value, from, sizeof(value));
  return value;
}

// Returns from[index] for each lane.
static inline Vec gather(const float* from, IntVec index) {
#if defined(__AVX512F__)
  // The intrinsic without a mask reads an undefined register, about which GCC warns.
  return _mm512_mask_i32gather_ps(Vec{}, 0xffff, (__m512i)index, from, 4);
#elif defined(__AVX2__)
  return _mm256_i32gather_ps(from, (__m256i)index, 4);
#else
  Vec value;
  for (int i = 0; i < kWidth; ++i) value[i] = from[index[i]];
  return value;
#endif
}

static inline void store(float* to, Vec value) { __builtin_memcpy(to, &value, sizeof(value)); }

// a * b + c, rounded once if the instruction set has such an operation.
static inline Vec fma(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
  return _mm256_fmadd_ps(a, b, c);
#elif defined(__ARM_NEON)
  return vfmaq_f32(c, a, b);
#else
  return a * b + c;
#endif
}

// max and min return b if either is NaN. They are written as intrinsics because the compiler does
// not always recognise that one instruction is enough. (GCC warns about an undefined register in
// the intrinsics without a mask.)
static inline Vec max(Vec a, Vec b) {
#if defined(__AVX512F__)
  return _mm512_maskz_max_ps(0xffff, a, b);
#elif defined(__AVX2__)
  return _mm256_max_ps(a, b);
#elif defined(__ARM_NEON)
  return a > b ? a : b;  // b if one is NaN, as on x86; NEON's own instructions differ
#else
  return _mm_max_ps(a, b);
#endif
}

static inline Vec min(Vec a, Vec b) {
#if defined(__AVX512F__)
  return _mm512_maskz_min_ps(0xffff, a, b);
#elif defined(__AVX2__)
  return _mm256_min_ps(a, b);
#elif defined(__ARM_NEON)
  return a < b ? a : b;
#else
  return _mm_min_ps(a, b);
#endif
}

// bfloat16 is the upper half of a float32. Storing rounds to nearest, ties to even; NaNs stay NaNs.
using HalfVec = bfloat16 __attribute__((vector_size(kWidth * 2)));

// kWidth numbers of 16 bits, with zeros above them. Compilers make several instructions of
// __builtin_convertvector here, and of that to bytes one for each lane.
static inline IntVec load_halves(const void* from) {
  HalfVec half;
  __builtin_memcpy(&half, from, sizeof(half));
#if defined(__AVX512F__)
  return (IntVec)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)half);
#elif defined(__AVX2__)
  return (IntVec)_mm256_cvtepu16_epi32((__m128i)half);
#elif defined(__ARM_NEON)
  return (IntVec)vmovl_u16((uint16x4_t)half);
#else
  return (IntVec)_mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i*)from));
#endif
}

static inline Vec load(const bfloat16* from) { return (Vec)(load_halves(from) << 16); }

static inline void store(bfloat16* to, Vec value) {
#if defined(__AVX512BF16__)  // it flushes subnormal numbers to zero
  const __m256bh half = _mm512_cvtneps_pbh((__m512)value);
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  const bfloat16x4_t half = vcvt_bf16_f32(value);
#else
  const IntVec bits = (IntVec)value;
  const IntVec rounded = bits + 0x7fff + (bits >> 16 & 1);
  const IntVec quiet = bits | 0x400000;
  const IntVec upper = (value != value ? quiet : rounded) >> 16;
#if defined(__ARM_NEON)
  const uint16x4_t half = vmovn_u32((uint32x4_t)upper);
#else
  const HalfVec half = __builtin_convertvector(upper, HalfVec);
#endif
#endif
  __builtin_memcpy(to, &half, sizeof(half));
}

// kWidth bytes, with zeros above them.
static inline IntVec load_low_bytes(const void* from) {
#if defined(__AVX512F__)
  return (IntVec)_mm512_maskz_cvtepu8_epi32(0xffff, _mm_loadu_si128((const __m128i*)from));
#elif defined(__AVX2__)
  return (IntVec)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)from));
#else
  uint32_t bytes;
  __builtin_memcpy(&bytes, from, sizeof(bytes));
#if defined(__ARM_NEON)
  return (IntVec)vmovl_u16(vget_low_u16(vmovl_u8((uint8x8_t)(uint64x1_t){bytes})));
#else
  return (IntVec)_mm_cvtepu8_epi32(_mm_cvtsi32_si128(static_cast<int>(bytes)));
#endif
#endif
}

// Stores the lowest byte of every lane.
static inline void store_low_bytes(void* to, IntVec value) {
#if defined(__ARM_NEON)
  const int16x4_t half = vmovn_s32(value);
  const auto bytes = (uint32x2_t)vmovn_s16(vcombine_s16(half, half));
#elif defined(__AVX512F__)
  const __m128i bytes = _mm512_maskz_cvtepi32_epi8(0xffff, (__m512i)value);
#elif defined(__AVX2__)
  const __m256i lowest = _mm256_set1_epi32(0x0c080400);
  const __m256i fours = _mm256_shuffle_epi8((__m256i)value, lowest);
  const __m128i bytes =
      _mm_unpacklo_epi32(_mm256_castsi256_si128(fours), _mm256_extracti128_si256(fours, 1));
#else
  const __m128i bytes = _mm_shuffle_epi8((__m128i)value, _mm_set1_epi32(0x0c080400));
#endif
  __builtin_memcpy(to, &bytes, kWidth);
}

#if defined(__ARM_NEON)

// sums += the products of 4 neighbouring bytes each, all signed. Those of two neighbours must add
// up to less than 2^15 in size.
static inline IntVec add_byte_products(IntVec sums, IntVec a, IntVec b) {
#if defined(__ARM_FEATURE_DOTPROD)
  return vdotq_s32(sums, (int8x16_t)a, (int8x16_t)b);
#else
  const int16x8_t low = vmull_s8(vget_low_s8((int8x16_t)a), vget_low_s8((int8x16_t)b));
  const int16x8_t high = vmull_high_s8((int8x16_t)a, (int8x16_t)b);
  return vpadalq_s16(sums, vpaddq_s16(low, high));
#endif
}

#endif

// Loads the first `count` < kWidth elements; the other lanes become zero.
template <class T>
static inline Vec load_first(const T* from, int count) {
  T elements[kWidth] = {};
  for (int i = 0; i < count; ++i) elements[i] = from[i];
  return load(elements);
}

template <class T>
static inline void store_first(T* to, Vec value, int count) {
  T elements[kWidth];
  store(elements, value);
  for (int i = 0; i < count; ++i) to[i] = elements[i];
}

// Exchanges the upper half of every block of 2 * size lanes of `a` with the lower half of the same
// block of `b`.
template <int size>
static inline void exchange(Vec& a, Vec& b) {
  const Vec x = a;
  const Vec y = b;
#if defined(__AVX512F__)
  const IntVec lanes = lane_numbers();
  const IntVec upper = (lanes & size) != 0;
  a = _mm512_permutex2var_ps(x, (__m512i)(upper ? lanes - size + kWidth : lanes), y);
  b = _mm512_permutex2var_ps(x, (__m512i)(upper ? lanes + kWidth : lanes + size), y);
#elif defined(__AVX2__)
  if constexpr (size == 4) {
    a = __builtin_shufflevector(x, y, 0, 1, 2, 3, 8, 9, 10, 11);
    b = __builtin_shufflevector(x, y, 4, 5, 6, 7, 12, 13, 14, 15);
  } else if constexpr (size == 2) {
    a = __builtin_shufflevector(x, y, 0, 1, 8, 9, 4, 5, 12, 13);
    b = __builtin_shufflevector(x, y, 2, 3, 10, 11, 6, 7, 14, 15);
  } else {
    a = __builtin_shufflevector(x, y, 0, 8, 2, 10, 4, 12, 6, 14);
    b = __builtin_shufflevector(x, y, 1, 9, 3, 11, 5, 13, 7, 15);
  }
#else
  if constexpr (size == 2) {
    a = __builtin_shufflevector(x, y, 0, 1, 4, 5);
    b = __builtin_shufflevector(x, y, 2, 3, 6, 7);
  } else {
    a = __builtin_shufflevector(x, y, 0, 4, 2, 6);
    b = __builtin_shufflevector(x, y, 1, 5, 3, 7);
  }
#endif
}

// Transposes kWidth rows of kWidth elements in log2(kWidth) rounds.
template <int size = kWidth / 2>
static inline void transpose(Vec* rows) {
  if constexpr (size > 0) {
    for (int i = 0; i < kWidth; ++i) {
      if ((i & size) == 0) exchange<size>(rows[i], rows[i + size]);
    }
    transpose<size / 2>(rows);
  }
}

// Combines the upper half of the lanes with the lower half until one lane is left.
template <class Op, int size = kWidth / 2>
static inline float fold_lanes(Vec value, Op op) {
  Vec unused = value;
  Vec upper = value;
  exchange<size>(unused, upper);
  value = op(value, upper);
  if constexpr (size > 1) return fold_lanes<Op, size / 2>(value, op);
  return value[0];
}

static inline float sum_lanes(Vec value) {
  return fold_lanes(value, [](Vec a, Vec b) { return a + b; });
}

static inline float max_lane(Vec value) {
  return fold_lanes(value, [](Vec a, Vec b) { return max(a, b); });
}

// 2^x with an error of up to 2 units in the last place; 0 below 2^-126, NaN for NaN. x must not
// exceed 127. With n the integer nearest to x, 2^x = 2^n 2^r. The polynomial is a minimax fit of
// 2^r on [-1/2, 1/2] with a relative error of 2e-9, exact at 0.
static inline Vec exp2(Vec x) {
  const Vec magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Vec shifted = x + magic;
  const Vec r = x - (shifted - magic);
  Vec p = splat(1.5353362e-4f);
  p = fma(p, r, splat(1.3398874e-3f));
  p = fma(p, r, splat(9.618437e-3f));
  p = fma(p, r, splat(5.5503324e-2f));
  p = fma(p, r, splat(2.4022648e-1f));
  p = fma(p, r, splat(6.931472e-1f));
  p = fma(p, r, splat(1.0f));
  const Vec scaled = (Vec)((BitsVec)p + ((BitsVec)shifted << 23));
  const Vec number = x < splat(-126.0f) ? Vec{} : scaled;
  return x != x ? x : number;
}
