// Kernels of adapters (LoRA), and activations without a product. Included by kernels_body.h.

// The dot product of two rows. Its order of summation depends on the number of columns alone.
template <class T>
static inline float dot_rows(const T* x, const T* a, int64_t columns) {
  Vec sums[4] = {};
  int64_t c = 0;
  for (; c + 4 * kWidth <= columns; c += 4 * kWidth) {
    for (int i = 0; i < 4; ++i) {
      sums[i] = fma(load(x + c + i * kWidth), load(a + c + i * kWidth), sums[i]);
    }
  }
  for (; c + kWidth <= columns; c += kWidth) sums[0] = fma(load(x + c), load(a + c), sums[0]);
  if (c < columns) {
    const auto rest = static_cast<int>(columns - c);
    sums[1] = fma(load_first(x + c, rest), load_first(a + c, rest), sums[1]);
  }
  return sum_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

template <class T>
static void lora_shrink(const LoraShrink& task) {
  const auto* a = static_cast<const T*>(task.a);
  for (int64_t r = 0; r < task.rows; ++r) {
    task.out[r] = dot_rows(static_cast<const T*>(task.x), a + r * task.columns, task.columns);
  }
}

// Adds to kVectors vectors of columns from `c` on.
template <int kVectors, class T>
static inline void expand_columns(const LoraExpand& task, int64_t c) {
  const float* inner[kVectors];
  Vec sums[kVectors] = {};
  for (int i = 0; i < kVectors; ++i) {
    const int part = task.parts != nullptr ? task.parts[(c + i * kWidth) / 8] : 0;
    inner[i] = task.inner + static_cast<int64_t>(part) * task.max_rank;
  }
  const T* b = static_cast<const T*>(task.b) + c;
  for (int r = 0; r < task.rank; ++r, b += task.b_stride) {
    for (int i = 0; i < kVectors; ++i) {
      sums[i] = fma(splat(inner[i][r]), load(b + i * kWidth), sums[i]);
    }
  }
  T* out = static_cast<T*>(task.out) + c;
  for (int i = 0; i < kVectors; ++i) store(out + i * kWidth, load(out + i * kWidth) + sums[i]);
}

template <class T>
static void lora_expand(const LoraExpand& task) {
  int64_t c = 0;
  for (; c + 4 * kWidth <= task.columns; c += 4 * kWidth) expand_columns<4, T>(task, c);
  for (; c + kWidth <= task.columns; c += kWidth) expand_columns<1, T>(task, c);
  if (c == task.columns) return;
  const auto rest = static_cast<int>(task.columns - c);
  const int part = task.parts != nullptr ? task.parts[c / 8] : 0;
  const float* inner = task.inner + static_cast<int64_t>(part) * task.max_rank;
  const T* b = static_cast<const T*>(task.b) + c;
  Vec sum = {};
  for (int r = 0; r < task.rank; ++r, b += task.b_stride) {
    sum = fma(splat(inner[r]), load_first(b, rest), sum);
  }
  T* out = static_cast<T*>(task.out) + c;
  store_first(out, load_first(out, rest) + sum, rest);
}

template <class T>
static void activate_elements(const ActivateElements& task) {
  const auto* x = static_cast<const T*>(task.x);
  auto* out = static_cast<T*>(task.out);
  with_activation(task.activation, [&](auto f) {
    int64_t i = 0;
    for (; i + kWidth <= task.count; i += kWidth) store(out + i, f(load(x + i)));
    const auto rest = static_cast<int>(task.count - i);
    if (rest > 0) store_first(out + i, f(load_first(x + i, rest)), rest);
  });
}
