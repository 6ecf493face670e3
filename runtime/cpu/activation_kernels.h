// Activation functions on vectors, and gating of rows. Included by kernels_body.h.

// The absolute error of the activations below is under 2e-7 for |x| <= 1; beyond, this bound holds
// relative to x. tanh is exact to a few units in the last place everywhere.
static inline Vec sigmoid(Vec x) {
  const Vec power = x * splat(-1.44269504088896340736f);
  const Vec limit = splat(126.0f);
  const Vec value = splat(1.0f) / (splat(1.0f) + exp2(power > limit ? limit : power));
  return power > limit ? Vec{}
                       : value;  // 0 instead of 1e-38, which a factor of 1e38 would make visible
}

// GELU: x Phi(x). For z = |x| / sqrt(2), erfc(z) = t exp(-z^2) q(t) with t = 1 / (1 + z / 2), where
// q is a polynomial of degree 8. It is a minimax fit (Lawson's reweighted least squares) with a
// relative error of 6e-8.
static inline Vec gelu(Vec x) {
  const Vec z = (x < Vec{} ? -x : x) * splat(0.70710678118654752440f);
  const Vec t = splat(1.0f) / fma(z, splat(0.5f), splat(1.0f));
  Vec q = splat(-0.0588907044f);
  q = fma(q, t, splat(0.283701601f));
  q = fma(q, t, splat(-0.485382906f));
  q = fma(q, t, splat(0.275977184f));
  q = fma(q, t, splat(-0.0251769746f));
  q = fma(q, t, splat(0.202069517f));
  q = fma(q, t, splat(0.243261091f));
  q = fma(q, t, splat(0.282353472f));
  q = fma(q, t, splat(0.282087677f));
  const Vec tail = splat(0.5f) * t * q * exp2(z * z * splat(-1.44269504088896340736f));
  return x * (x < Vec{} ? tail : splat(1.0f) - tail);
}

// GELU with an error of up to 1e-4 (for |x| > 6 up to 3e-6 |x|), for the results of int8 products.
// It computes Phi(x) - 1/2 = x p(x^2), clamped at |x| = 4.25, where it reaches 1/2. The polynomial
// p of degree 7 is a minimax fit under that constraint.
static inline Vec coarse_gelu(Vec x) {
  const Vec limit = splat(4.25f);
  const Vec near = min(limit, max(-limit, x));
  const Vec square = near * near;
  Vec p = splat(-8.46062276e-10f);
  p = fma(p, square, splat(7.57097709e-08f));
  p = fma(p, square, splat(-2.93884136e-06f));
  p = fma(p, square, splat(6.55276308e-05f));
  p = fma(p, square, splat(-0.000940451573f));
  p = fma(p, square, splat(0.00925783906f));
  p = fma(p, square, splat(-0.0654535294f));
  p = fma(p, square, splat(0.398420066f));
  return x * fma(near, p, splat(0.5f));
}

// GELU by tanh, using that 0.5 (1 + tanh(u)) is the sigmoid of 2 u.
static inline Vec gelu_tanh(Vec x) {
  const Vec cubic = fma(x * x * x, splat(0.044715f), x);
  return x * sigmoid(cubic * splat(1.5957691216057308f));
}

// tanh with a relative error below 4e-7: near zero x times a minimax fit in its square, further
// away 1 - 2 / (1 + exp(2 |x|)).
static inline Vec tanh(Vec x) {
  const Vec size = max(x, -x);
  const Vec square = x * x;
  Vec p = splat(-0.005515154451f);
  p = fma(p, square, splat(0.02046941034f));
  p = fma(p, square, splat(-0.05368801952f));
  p = fma(p, square, splat(0.1333083063f));
  p = fma(p, square, splat(-0.3333325982f));
  const Vec near = fma(x * square, p, x);
  const Vec power = exp2(min(size, splat(20.0f)) * splat(2 * 1.44269504088896340736f));
  const Vec far = splat(1.0f) - splat(2.0f) / (splat(1.0f) + power);
  return size < splat(0.65f) ? near : (x < Vec{} ? -far : far);
}

// Calls body(f), where f computes the activation of a vector.
template <class Body>
static inline void with_activation(Activation activation, Body body) {
  switch (activation) {
    case Activation::kNone:
      return body([](Vec x) { return x; });
    case Activation::kGelu:
      return body([](Vec x) { return gelu(x); });
    case Activation::kGeluTanh:
      return body([](Vec x) { return gelu_tanh(x); });
    case Activation::kRelu:
      return body([](Vec x) { return x < Vec{} ? Vec{} : x; });
    case Activation::kSilu:
      return body([](Vec x) { return x * sigmoid(x); });
    case Activation::kTanh:
      return body([](Vec x) { return tanh(x); });
    case Activation::kSigmoid:
      return body([](Vec x) { return sigmoid(x); });
  }
}

template <class T, class F>
static inline void gate_rows_by(const GateRows& task, F activation) {
  for (int64_t row = 0; row < task.rows; ++row) {
    const T* gate = static_cast<const T*>(task.x) + row * task.x_stride;
    T* out = static_cast<T*>(task.out) + row * task.out_stride;
    for (int64_t block = 0; block < task.columns; block += kGateBlock, gate += 2 * kGateBlock) {
      for (int c = 0; c < kGateBlock; c += kWidth) {
        store(out + block + c, activation(load(gate + c)) * load(gate + kGateBlock + c));
      }
    }
  }
}

template <class T>
static void gate_rows(const GateRows& task) {
  with_activation(task.activation, [&](auto f) { gate_rows_by<T>(task, f); });
}
