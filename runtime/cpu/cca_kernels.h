// A head of compressed convolutional attention, from latents to queries or keys. Included by
// kernels_body.h.
//
// The bits of a row depend on the row and those before it alone: a sum begins with the bias and
// takes its products in ascending order, however many rows and columns are computed at once.

// window = the first convolution of one row, at each tap of the second: [grouped_width, head_dim].
template <class T>
static inline void convolve_depthwise(const CcaHead& task, const void* const* taps, float* window) {
  for (int tap = 0; tap < task.grouped_width; ++tap, window += task.head_dim) {
    for (int c = 0; c < task.head_dim; c += kWidth) {
      Vec sum = load(task.depthwise_bias + c);
      const float* weight = task.depthwise + c;
      for (int j = 0; j < task.depthwise_width; ++j, weight += task.depthwise_stride) {
        const auto* x = static_cast<const T*>(taps[tap + j]);
        if (x != nullptr) sum = fma(load(weight), load(x + task.column + c), sum);
      }
      store(window + c, sum);
    }
  }
}

// sums = kVectors vectors of columns of the second convolution, of kRows rows.
template <int kRows, int kVectors, class T>
static inline void convolve_grouped(const CcaHead& task, const float* window, int column,
                                    float* sums) {
  const int inputs = task.grouped_width * task.head_dim;
  const T* weight = static_cast<const T*>(task.grouped) + column;
  Vec sum[kRows][kVectors];
  for (int v = 0; v < kVectors; ++v) {
    const Vec bias = load(task.grouped_bias + column + v * kWidth);
    for (int r = 0; r < kRows; ++r) sum[r][v] = bias;
  }
  for (int i = 0; i < inputs; ++i, weight += task.head_dim) {
    Vec w[kVectors];
    for (int v = 0; v < kVectors; ++v) w[v] = load(weight + v * kWidth);
    for (int r = 0; r < kRows; ++r) {
      const Vec x = splat(window[static_cast<int64_t>(r) * inputs + i]);
      for (int v = 0; v < kVectors; ++v) sum[r][v] = fma(x, w[v], sum[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      store(sums + r * task.head_dim + column + v * kWidth, sum[r][v]);
    }
  }
}

// Computes all columns of kRows rows. head_dim is a multiple of 16.
template <int kRows, class T>
static inline void convolve_rows(const CcaHead& task, const float* window, float* sums) {
  constexpr int kMost = kRegisters == 32 ? 4 : 2;
  int c = 0;
  for (; c + kMost * kWidth <= task.head_dim; c += kMost * kWidth) {
    convolve_grouped<kRows, kMost, T>(task, window, c, sums);
  }
  for (; c < task.head_dim; c += kWidth) convolve_grouped<kRows, 1, T>(task, window, c, sums);
}

// Adds the mean of latents to the sums of one row, brings them to their length, rotates them.
template <class T>
static inline void finish_head(const CcaHead& task, int row, float* head) {
  const int taps = task.depthwise_width + task.grouped_width - 1;
  const auto* latents = static_cast<const T*>(task.taps[row * taps + taps - 1]);
  const T* own = latents + task.column;
  const T* others = latents + task.others_column;
  const Vec share = splat(0.5f / static_cast<float>(task.num_others));
  Vec squares = {};
  for (int c = 0; c < task.head_dim; c += kWidth) {
    Vec sum = {};
    for (int h = 0; h < task.num_others; ++h) sum += load(others + h * task.head_dim + c);
    const Vec value = load(head + c) + (load(own + c) * splat(0.5f) + sum * share);
    squares = fma(value, value, squares);
    store(head + c, value);
  }
  const float norm = __builtin_sqrtf(sum_lanes(squares));
  constexpr float kSmallest = 0x1p-23f;
  // Written so that a NaN stays one.
  const Vec factor = splat(task.length / (norm < kSmallest ? kSmallest : norm));
  for (int c = 0; c < task.head_dim; c += kWidth) store(head + c, load(head + c) * factor);
  if (task.pairs > 0) {
    RotateRow rotate;
    rotate.cosines = task.rotation + row * task.rotation_stride;
    rotate.sines = rotate.cosines + task.pairs;
    rotate.pairs = task.pairs;
    rotate_head(rotate, head);
  }
  T* out = static_cast<T*>(task.out) + row * task.out_stride;
  for (int c = 0; c < task.head_dim; c += kWidth) store(out + c, load(head + c));
}

template <class T>
static void convolve_head(const CcaHead& task) {
  const int inputs = task.grouped_width * task.head_dim;
  const int taps = task.depthwise_width + task.grouped_width - 1;
  float* window = task.scratch;
  float* sums = window + static_cast<int64_t>(kCcaRows) * inputs;
  for (int r = 0; r < task.rows; ++r) {
    convolve_depthwise<T>(task, task.taps + r * taps, window + static_cast<int64_t>(r) * inputs);
  }
  int r = 0;
  const auto convolve = [&]<int kRows>() {
    for (; r + kRows <= task.rows; r += kRows) {
      convolve_rows<kRows, T>(task, window + static_cast<int64_t>(r) * inputs,
                              sums + r * task.head_dim);
    }
  };
  convolve.template operator()<6>();
  convolve.template operator()<2>();
  convolve.template operator()<1>();
  for (r = 0; r < task.rows; ++r) finish_head<T>(task, r, sums + r * task.head_dim);
}
