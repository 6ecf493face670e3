// Keys and values in e4m3 (core/float8.h has the conversions in scalar code, which these follow bit
// by bit). Included by kernels_body.h.

/// An e4m3 element, without its scale.
struct Float8 {
  uint8_t bits;
};

// Loads give numbers / kFloat8Unit, which is what the bits of a half-precision number with the same
// exponent and mantissa stand for.
static constexpr float kFloat8Unit = 256.0f;

// The bytes of NaN, which quantize_head does not write, are not looked for.
static inline Vec load(const Float8* from) {
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
  const __m256i words = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)from));
  // The sign lies in the bits 14 and 15 now, and belongs to the latter alone.
  const __m256i half = _mm256_and_si256(_mm256_slli_epi16(words, 7), _mm256_set1_epi16(~0x4000));
  return _mm512_maskz_cvtph_ps(0xffff, half);
#else
  const IntVec bits = load_low_bytes(from);
  const IntVec magnitude = bits & 0x7f;
  // The exponent's bias is 15 instead of 127; below 2^-14 there is no implicit one.
  const IntVec normal = (magnitude + ((127 - 15) << 3)) << 20;
  const Vec small = __builtin_convertvector(magnitude, Vec) * 0x1p-17f;
  const IntVec number = magnitude < 8 ? (IntVec)small : normal;
  return (Vec)(number | (bits & 0x80) << 24);
#endif
}

/// `value` lies between -448 and 448.
static inline void store(Float8* to, Vec value) {
  const IntVec bits = (IntVec)value;
  const IntVec magnitude = bits & 0x7fffffff;
  const IntVec rebiased = magnitude - ((127 - 7) << 23);
  const IntVec normal = (rebiased + 0x7ffff + (rebiased >> 20 & 1)) >> 20;
  // One unit in the last place of 2^14 is 2^-9, the smallest number: the addition rounds.
  const Vec shifted = (Vec)magnitude + splat(0x1p14f);
  const IntVec small = (IntVec)shifted - (IntVec)splat(0x1p14f);
  const IntVec rounded = (Vec)magnitude < splat(0x1p-6f) ? small : normal;
  store_low_bytes(to, rounded | (bits >> 24 & 0x80));
}

/// Quantises a head as quantize_float8 does. Where an element is not finite, the scale is NaN, so
/// that no query takes the head for numbers.
template <class T>
static void quantize_head(const QuantizeHead& task) {
  const T* const x = static_cast<const T*>(task.x);
  Vec greatest = splat(kFloat8Least);
  Vec spoiled = {};  // zeros times numbers, or NaN
  for (int c = 0; c < task.head_dim; c += kWidth) {
    const Vec value = load(x + c);
    greatest = max(max(value, -value), greatest);
    spoiled += value * 0.0f;
  }
  const float most = max_lane(greatest);
  const float factor = kFloat8Most / most;
  for (int c = 0; c < task.head_dim; c += kWidth) {
    const Vec value = load(x + c) * splat(factor);
    store(reinterpret_cast<Float8*>(task.out + c),
          min(max(value, splat(-kFloat8Most)), splat(kFloat8Most)));
  }
  *task.scale = most * (1 / kFloat8Most) + sum_lanes(spoiled);
}

static inline Rows as_floats(const Float8* from, int64_t stride, int rows, int columns, float* to) {
  for (int i = 0; i < rows; ++i) {
    for (int c = 0; c < columns; c += kWidth) {
      store(to + i * columns + c, load(from + i * stride + c));
    }
  }
  return {to, columns};
}
