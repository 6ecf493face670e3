// Kernels that process each row by itself: norm, embedding, pooling, cast. Included by
// kernels_body.h.
//
// The order of every sum depends only on the number of columns (or on the number of rows of a
// sequence).

// A row that is the sum of one to three rows. `b` and `c` may be null.
template <class A, class B>
struct RowSum {
  const A* a;
  const B* b;
  const B* c;

  Vec at(int64_t column) const {
    Vec value = load(a + column);
    if (b != nullptr) value += load(b + column);
    if (c != nullptr) value += load(c + column);
    return value;
  }
  Vec first_at(int64_t column, int count) const {
    Vec value = load_first(a + column, count);
    if (b != nullptr) value += load_first(b + column, count);
    if (c != nullptr) value += load_first(c + column, count);
    return value;
  }
};

// The sum of f(element) over all columns. Lanes after the last column are not added.
template <class Row, class F>
static inline float sum_row(const Row& row, int64_t columns, F f) {
  Vec sums[4] = {};
  int64_t column = 0;
  for (; column + 4 * kWidth <= columns; column += 4 * kWidth) {
    for (int i = 0; i < 4; ++i) sums[i] += f(row.at(column + i * kWidth));
  }
  for (; column + kWidth <= columns; column += kWidth) sums[0] += f(row.at(column));
  if (column < columns) {
    const auto rest = static_cast<int>(columns - column);
    const Vec value = f(row.first_at(column, rest));
    sums[1] += lane_numbers() < splat_int(rest) ? value : Vec{};
  }
  return sum_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// out = norm(row). The mean is computed first and the variance from the differences to it, because
// one pass over sums and sums of squares would lose the variance of a row with a large mean. The
// row is read three times, from the first-level cache, and `out` may be one of the rows that it is
// the sum of.
// `added` is null, or a row that is added to the norm.
template <class Row, class Out>
static inline void norm_row(const Row& row, int64_t columns, const NormParams& norm, Out* out,
                            const Out* added = nullptr) {
  Vec mean = {};
  Vec inverse = splat(1.0f);
  if (norm.gamma != nullptr) {
    const int64_t counted = columns - norm.padding;
    const auto count = static_cast<float>(counted);
    if (!norm.rms) mean = splat(sum_row(row, counted, [](Vec x) { return x; }) / count);
    const float squares = sum_row(row, counted, [&](Vec x) { return (x - mean) * (x - mean); });
    inverse = splat(1.0f / __builtin_sqrtf(squares / count + norm.eps));
  }
  const auto apply = [&](Vec value, auto load_parameter) {
    if (norm.gamma == nullptr) return value;
    value = (value - mean) * inverse * load_parameter(norm.gamma);
    return norm.beta != nullptr ? value + load_parameter(norm.beta) : value;
  };
  int64_t column = 0;
  for (; column + kWidth <= columns; column += kWidth) {
    const auto full = [&](const float* parameter) { return load(parameter + column); };
    Vec value = apply(row.at(column), full);
    if (added != nullptr) value += load(added + column);
    store(out + column, value);
  }
  if (column < columns) {
    const auto rest = static_cast<int>(columns - column);
    const auto part = [&](const float* parameter) { return load_first(parameter + column, rest); };
    Vec value = apply(row.first_at(column, rest), part);
    if (added != nullptr) value += load_first(added + column, rest);
    store_first(out + column, value, rest);
  }
}

template <class X, class T>
static void norm_rows(const NormRows& task) {
  const auto* x = static_cast<const X*>(task.x);
  const auto* residual = static_cast<const T*>(task.residual);
  const auto* added = static_cast<const T*>(task.added);
  auto* out = static_cast<T*>(task.out);
  for (int64_t i = 0; i < task.rows; ++i) {
    const T* residual_row = residual != nullptr ? residual + i * task.residual_stride : nullptr;
    norm_row(RowSum<X, T>{x + i * task.x_stride, residual_row, nullptr}, task.columns, task.norm,
             out + i * task.out_stride, added != nullptr ? added + i * task.added_stride : nullptr);
  }
}

template <class T>
static void embed_row(const EmbedRow& task) {
  norm_row(RowSum<T, T>{static_cast<const T*>(task.word), static_cast<const T*>(task.position),
                        static_cast<const T*>(task.type)},
           task.columns, task.norm, static_cast<T*>(task.out));
}

// The sum or maximum of a vector of columns over all rows of a sequence.
template <class X>
struct PooledRow {
  const PoolRows& task;

  template <class Load>
  Vec pool(Load load_row) const {
    if (task.rows == 0) return Vec{};
    Vec value = load_row(0);
    for (int64_t i = 1; i < task.rows; ++i) {
      const Vec next = load_row(i * task.x_stride);
      if (task.take_max) {
        const IntVec stays = (value > next) | (value != value);  // a NaN is kept
        value = stays ? value : next;
      } else if (task.weigh_rows) {
        value += next * splat(static_cast<float>(i + 1));
      } else {
        value += next;
      }
    }
    return value * splat(task.factor);
  }
  Vec at(int64_t column) const {
    const X* x = static_cast<const X*>(task.x) + column;
    return pool([&](int64_t offset) { return load(x + offset); });
  }
  Vec first_at(int64_t column, int count) const {
    const X* x = static_cast<const X*>(task.x) + column;
    return pool([&](int64_t offset) { return load_first(x + offset, count); });
  }
};

template <class X, class Out>
static void pool_rows(const PoolRows& task) {
  const PooledRow<X> row = {task};
  auto* out = static_cast<Out*>(task.out);
  Vec factor = splat(1.0f);
  if (task.normalize) {
    const float length = __builtin_sqrtf(sum_row(row, task.columns, [](Vec x) { return x * x; }));
    // As in torch.nn.functional.normalize, no row is divided by less than 1e-12.
    factor = splat(1.0f / (length < 1e-12f ? 1e-12f : length));
  }
  int64_t column = 0;
  for (; column + kWidth <= task.columns; column += kWidth) {
    store(out + column, row.at(column) * factor);
  }
  if (column < task.columns) {
    const auto rest = static_cast<int>(task.columns - column);
    store_first(out + column, row.first_at(column, rest) * factor, rest);
  }
}

template <class From, class To, class F>
static inline void cast_by(const CastElements& task, F f) {
  const auto* from = static_cast<const From*>(task.from);
  auto* to = static_cast<To*>(task.to);
  int64_t i = 0;
  for (; i + kWidth <= task.count; i += kWidth) store(to + i, f(load(from + i)));
  if (i < task.count) {
    const auto rest = static_cast<int>(task.count - i);
    store_first(to + i, f(load_first(from + i, rest)), rest);
  }
}

template <class From, class To>
static void cast(const CastElements& task) {
  if (task.soft_cap > 0) {
    const Vec factor = splat(task.scale / task.soft_cap);
    const Vec cap = splat(task.soft_cap);
    with_activation(Activation::kTanh, [&](auto tanh) {
      cast_by<From, To>(task, [&](Vec x) { return cap * tanh(x * factor); });
    });
  } else if (task.scale != 1.0f) {
    cast_by<From, To>(task, [&](Vec x) { return x * splat(task.scale); });
  } else {
    cast_by<From, To>(task, [](Vec x) { return x; });
  }
}
