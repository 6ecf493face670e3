// Keys and values in e4m3 (core/float8.h has the conversions in scalar code, which these follow bit
// by bit). Included by kernels_body.h.

/// One element, without its scale.
struct Float8 {
  uint8_t bits;
};

using ByteVec = uint8_t __attribute__((vector_size(kWidth)));

static inline Vec load(const Float8* from) {
  ByteVec bytes;
  __builtin_memcpy(&bytes, from, sizeof(bytes));
  const IntVec bits = __builtin_convertvector(bytes, IntVec);
  const IntVec magnitude = bits & 0x7f;
  // The exponent's bias is 7 instead of 127; below 2^-6 there is no implicit one. The bytes of NaN,
  // which quantize_head does not write, are not looked for.
  const IntVec normal = (magnitude + ((127 - 7) << 3)) << 20;
  const Vec small = __builtin_convertvector(magnitude, Vec) * 0x1p-9f;
  const IntVec number = magnitude < 8 ? (IntVec)small : normal;
  return (Vec)(number | (bits & 0x80) << 24);
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
  const ByteVec bytes = __builtin_convertvector(rounded | (bits >> 24 & 0x80), ByteVec);
  __builtin_memcpy(to, &bytes, sizeof(bytes));
}

/// As quantize_float8 does it. Where an element is not finite, the scale is NaN, so that no query
/// takes the head for numbers.
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

/// Elements from one of a page's tokens, times the token's scale where the page has scales.
template <class T>
static inline Vec load_scaled(const T* from, const float* /*scale*/) {
  return load(from);
}
static inline Vec load_scaled(const Float8* from, const float* scale) {
  return load(from) * splat(*scale);
}

static inline Rows as_floats(const Float8* from, const float* scales, int rows, int columns,
                             float* to) {
  for (int i = 0; i < rows; ++i) {
    for (int c = 0; c < columns; c += kWidth) {
      store(to + i * columns + c, load_scaled(from + i * columns + c, scales + i));
    }
  }
  return {to, columns};
}
template <class T>
static inline Rows as_floats(const T* from, const float* /*scales*/, int rows, int columns,
                             float* to) {
  return as_floats(from, static_cast<int64_t>(columns), rows, columns, to);
}
