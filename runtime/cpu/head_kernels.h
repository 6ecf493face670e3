// Operations on single heads between projection and attention. Included by kernels_body.h.

// Rotates one head, held as float32: (a, b) -> (a cos - b sin, b cos + a sin).
static inline void rotate_head(const RotateRow& task, float* head) {
  float* other = head + task.pairs;
  const auto rotate = [&](int j, auto load_some, auto store_some) {
    const Vec cosine = load_some(task.cosines + j);
    const Vec sine = load_some(task.sines + j);
    const Vec a = load_some(head + j);
    const Vec b = load_some(other + j);
    store_some(head + j, a * cosine - b * sine);
    store_some(other + j, b * cosine + a * sine);
  };
  int j = 0;
  for (; j + kWidth <= task.pairs; j += kWidth) {
    rotate(
        j, [](const float* from) { return load(from); },
        [](float* to, Vec value) { store(to, value); });
  }
  if (j < task.pairs) {
    const int rest = task.pairs - j;
    rotate(
        j, [&](const float* from) { return load_first(from, rest); },
        [&](float* to, Vec value) { store_first(to, value, rest); });
  }
}

template <class T>
static void rotate_row(const RotateRow& task) {
  float* head = task.scratch;
  for (int64_t h = 0; h < task.heads; ++h) {
    T* x = static_cast<T*>(task.x) + h * task.head_dim;
    for (int c = 0; c < task.head_dim; c += kWidth) store(head + c, load(x + c));
    norm_row(RowSum<float, float>{head, nullptr, nullptr}, task.model_dim, task.norm, head);
    rotate_head(task, head);
    for (int c = 0; c < task.head_dim; c += kWidth) store(x + c, load(head + c));
  }
}
