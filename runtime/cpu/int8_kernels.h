// Conversion of rows of floats to bytes, and of integer sums back to floats. Included by
// kernels_body.h.

// The smallest and the largest element, and NaN in `poison` if any element is NaN or infinite.
struct Extent {
  Vec low, high, poison;

  void take(Vec x) {
    low = min(x, low);
    high = max(x, high);
    poison = fma(x, Vec{}, poison);
  }
  void take(const Extent& other) {
    low = min(other.low, low);
    high = max(other.high, high);
    poison += other.poison;
  }
};

template <class T>
static inline void quantize_row(const T* x, int64_t columns, float levels, uint8_t* values,
                                float* scale, float* offset) {
  const auto rest = static_cast<int>(columns % kWidth);
  const int64_t full = columns - rest;
  // Lanes after the end are filled with the first element, which changes neither minimum nor
  // maximum.
  const auto tail = [&] {
    Vec value = load_first(x + full, rest);
    const Vec first = load_first(x, 1);
    return lane_numbers() < splat_int(rest) ? value : splat(first[0]);
  };
  Extent extent = {splat(__builtin_inff()), splat(-__builtin_inff()), Vec{}};
  // Four independent chains hide the latency of each.
  Extent extents[4] = {extent, extent, extent, extent};
  int64_t taken = 0;
  for (; taken + 4 * kWidth <= full; taken += 4 * kWidth) {
    for (int i = 0; i < 4; ++i) extents[i].take(load(x + taken + i * kWidth));
  }
  for (; taken < full; taken += kWidth) extent.take(load(x + taken));
  for (const Extent& other : extents) extent.take(other);
  if (rest > 0) extent.take(tail());
  const float low = -max_lane(-extent.low);
  const float range = max_lane(extent.high) - low;
  const float poison = sum_lanes(extent.poison) + range * 0.0f;
  // A row of equal elements is stored as its offset only. A row that is not finite gets NaN as
  // scale and offset, so that its results become NaN.
  const bool spread = range > 1e-30f && poison == 0.0f;
  *scale = spread ? range / levels : poison;
  *offset = poison == 0.0f ? low : poison;
  const Vec inverse = splat(spread ? levels / range : 0.0f);
  const Vec start = splat(spread ? low : 0.0f);
  const Vec magic = splat(12582912.0f);  // 1.5 * 2^23: the low bits of a sum hold the integer
  const auto put = [&](uint8_t* to, Vec value) {
    store_low_bytes(to, (IntVec)fma(value - start, inverse, magic));
  };
  for (int64_t c = 0; c < full; c += kWidth) put(values + c, load(x + c));
  if (rest > 0) {
    uint8_t q[kWidth];
    put(q, tail());
    for (int i = 0; i < rest; ++i) values[full + i] = q[i];
  }
}

template <class T>
static void quantize_rows(const QuantizeRows& task) {
  for (int64_t i = 0; i < task.rows; ++i) {
    quantize_row(static_cast<const T*>(task.x) + i * task.x_stride, task.columns, task.levels,
                 task.values + i * task.columns, task.scales + i, task.offsets + i);
  }
}

// out = activation(scale_row * scale_column * sum + offset_row * sum_column + bias)
template <class T, class F>
static inline void dequantize_rows_by(const DequantizeRows& task, F activation) {
  const auto rest = static_cast<int>(task.columns % kWidth);
  const int64_t full = task.columns - rest;
  for (int64_t row = 0; row < task.rows; ++row) {
    const int32_t* sums = task.sums + row * task.columns;
    T* out = static_cast<T*>(task.out) + row * task.out_stride;
    const Vec scale = splat(task.scales[row]);
    const Vec offset = splat(task.offsets[row]);
    const auto at = [&](Vec sum, Vec weight_scale, Vec weight_sum, Vec bias) {
      return activation(fma(sum, scale * weight_scale, fma(offset, weight_sum, bias)));
    };
    for (int64_t c = 0; c < full; c += kWidth) {
      const Vec sum = __builtin_convertvector(load_int(sums + c), Vec);
      const Vec bias = task.bias != nullptr ? load(task.bias + c) : Vec{};
      store(out + c, at(sum, load(task.weight_scales + c), load(task.weight_sums + c), bias));
    }
    if (rest > 0) {
      Vec sum = {};
      for (int i = 0; i < rest; ++i) sum[i] = static_cast<float>(sums[full + i]);
      const Vec bias = task.bias != nullptr ? load_first(task.bias + full, rest) : Vec{};
      const Vec value = at(sum, load_first(task.weight_scales + full, rest),
                           load_first(task.weight_sums + full, rest), bias);
      store_first(out + full, value, rest);
    }
  }
}

template <class T>
static void dequantize_rows(const DequantizeRows& task) {
  // GELU is the most expensive activation, and int8 sums are less exact than coarse_gelu.
  if (task.activation == Activation::kGelu) {
    return dequantize_rows_by<T>(task, [](Vec x) { return coarse_gelu(x); });
  }
  with_activation(task.activation, [&](auto f) { dequantize_rows_by<T>(task, f); });
}
