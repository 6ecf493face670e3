// Dense layers whose weights are quantised in groups (MultiplyGroupwise in kernels.h). Included by
// kernels_body.h.

// float16 to float32, exactly; infinities and NaNs do not occur.
static inline Vec load_half(const uint8_t* from) {
#if defined(__AVX512F__)
  return _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256((const __m256i*)from));
#elif defined(__ARM_NEON)
  return vcvt_f32_f16((float16x4_t)vld1_u8(from));
#else
  const IntVec bits = load_halves(from);
  const Vec magnitude = (Vec)((bits & 0x7fff) << 13) * splat(0x1p112f);
  return (Vec)((IntVec)magnitude | (bits & 0x8000) << 16);
#endif
}

static inline IntVec load_bytes(const uint8_t* from) {
  IntVec value;
  __builtin_memcpy(&value, from, sizeof(value));
  return value;
}

// Quantises kGroupBlock features.
static inline void quantize_block(const Vec* x, int8_t* values, float* scale, int32_t* sums) {
  constexpr int kVectors = static_cast<int>(kGroupBlock) / kWidth;
  constexpr int kOfSpan = static_cast<int>(kGroupSpan) / kWidth;
  const IntVec magnitude = splat_int(0x7fffffff);
  Vec most = {};
  Vec poison = {};
  for (int i = 0; i < kVectors; ++i) {
    most = max((Vec)((IntVec)x[i] & magnitude), most);
    poison = fma(x[i], Vec{}, poison);
  }
  const float largest = max_lane(most);
  const float poisoned = sum_lanes(poison);
  const bool good = poisoned == 0.0f;
  const bool spread = good && largest > 1e-30f;
  *scale = spread ? largest / 127.0f : poisoned;
  const Vec inverse = splat(spread ? 127.0f / largest : 0.0f);
  const Vec magic = splat(12582912.0f);  // 1.5 * 2^23: the low bits of a sum hold the integer
  for (int s = 0; s < 2; ++s) {
    Vec sum = {};
    for (int i = 0; i < kOfSpan; ++i) {
      const int v = s * kOfSpan + i;
      const Vec shifted = (good ? x[v] : Vec{}) * inverse + magic;
      sum += shifted - magic;
      store_low_bytes(values + v * kWidth, (IntVec)shifted);
    }
    sums[s] = static_cast<int32_t>(sum_lanes(sum));
  }
}

template <class T>
static void quantize_blocks(const QuantizeBlocks& task) {
  constexpr int kBlock = static_cast<int>(kGroupBlock);
  const int64_t blocks = ceil_div(task.columns, kGroupBlock);
  for (int64_t row = 0; row < task.rows; ++row) {
    const T* x = static_cast<const T*>(task.x) + row * task.x_stride;
    const auto put = [&](const T* from, int64_t block) {
      Vec values[kBlock / kWidth];
      for (int i = 0; i < kBlock / kWidth; ++i) values[i] = load(from + i * kWidth);
      const int64_t at = row * blocks + block;
      quantize_block(values, task.values + at * kBlock, task.scales + at, task.sums + 2 * at);
    };
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t begin = block * kBlock;
      const int64_t left = task.columns - begin;
      const int count = left < kBlock ? static_cast<int>(left) : kBlock;
      if (task.order == nullptr && count == kBlock) {
        put(x + begin, block);
        continue;
      }
      T gathered[kBlock] = {};
      for (int i = 0; i < count; ++i) {
        gathered[i] = x[task.order == nullptr ? begin + i : task.order[begin + i]];
      }
      put(gathered, block);
    }
  }
}

namespace plain_groupwise {

#if defined(__ARM_NEON)

// Weights of 8 bits are moved to -128 to 127, because most processors multiply bytes of one kind.
static constexpr bool kSignedBytes = true;

static inline IntVec add_products(IntVec sums, IntVec w, IntVec x) {
  return add_byte_products(sums, w, x);
}

#else

static constexpr bool kSignedBytes = false;

// sums += the products of 4 neighbouring bytes each, those of w unsigned, those of x signed.
static inline IntVec add_products(IntVec sums, IntVec w, IntVec x) {
  const IntVec low = splat_int(0x00ff00ff);
  const IntVec even = w & low;
  const IntVec odd = (IntVec)((BitsVec)w >> 8) & low;
#if defined(__AVX512F__)
  const __m512i x_even = _mm512_srai_epi16(_mm512_slli_epi16((__m512i)x, 8), 8);
  const __m512i x_odd = _mm512_srai_epi16((__m512i)x, 8);
  return sums + (IntVec)_mm512_madd_epi16((__m512i)even, x_even) +
         (IntVec)_mm512_madd_epi16((__m512i)odd, x_odd);
#elif defined(__AVX2__)
  const __m256i x_even = _mm256_srai_epi16(_mm256_slli_epi16((__m256i)x, 8), 8);
  const __m256i x_odd = _mm256_srai_epi16((__m256i)x, 8);
  return sums + (IntVec)_mm256_madd_epi16((__m256i)even, x_even) +
         (IntVec)_mm256_madd_epi16((__m256i)odd, x_odd);
#else
  const __m128i x_even = _mm_srai_epi16(_mm_slli_epi16((__m128i)x, 8), 8);
  const __m128i x_odd = _mm_srai_epi16((__m128i)x, 8);
  return sums + (IntVec)_mm_madd_epi16((__m128i)even, x_even) +
         (IntVec)_mm_madd_epi16((__m128i)odd, x_odd);
#endif
}

#endif

#include "cpu/gemm_kernel_groupwise_tiles.h"
}  // namespace plain_groupwise

using MultiplyGroupwiseKernel = void (*)(const MultiplyGroupwise&);

#if defined(__AVX512F__)

#pragma GCC push_options
#pragma GCC target("avx512vnni")

namespace vnni_groupwise {

static constexpr bool kSignedBytes = false;

static inline IntVec add_products(IntVec sums, IntVec w, IntVec x) {
  return (IntVec)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)w, (__m512i)x);
}

#include "cpu/gemm_kernel_groupwise_tiles.h"
}  // namespace vnni_groupwise

#pragma GCC pop_options

template <class T>
static constexpr MultiplyGroupwiseKernel kMultiplyGroupwiseVnni = vnni_groupwise::multiply<T>;

#else

template <class T>
static constexpr MultiplyGroupwiseKernel kMultiplyGroupwiseVnni = nullptr;

#endif
