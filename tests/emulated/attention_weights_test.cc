// Weights of attention over pages beside float64, in 16 bits and over pages in e4m3, and the same
// bits of a row alone.
#include <random>

#include "core/float8.h"
#include "cuda/attention/weights/weights.h"
#include "emulated_stream.h"
#include "emulated_test.h"

namespace packhorse::cuda {
namespace {

using namespace packhorse::emulated_test;

struct Shape {
  int rows, heads, kv_heads, head_dim, num_keys;
};

template <class T, class Key>
void check_weights(const Shape& shape, unsigned seed) {
  constexpr bool kBytes = std::is_same_v<Key, uint8_t>;
  emulated::set_seed(seed);
  std::mt19937 random(seed);
  const auto size = [](int64_t a, int64_t b, int64_t c = 1) {
    return static_cast<size_t>(a * b * c);
  };
  const int pages = (shape.num_keys + 63) / 64 + 2;
  // Two sequences have tables; the second is read, whose pages come from the end.
  const int stride = pages - 2;
  std::vector<int32_t> table(size(2, stride), 0);
  for (int i = 0; i < stride; ++i) table[static_cast<size_t>(stride + i)] = pages - 1 - i;
  const Array<int32_t> tables(table);
  const Array<int32_t> kv_lens(std::vector<int32_t>{1, shape.num_keys});
  const int columns = shape.heads * shape.head_dim;
  Array<T> q(size(shape.rows, columns));
  fill_normal(q, random);
  const size_t num_rows = size(pages, shape.kv_heads, kPageTokens);
  Array<Key> keys(num_rows * static_cast<size_t>(shape.head_dim));
  Array<float> scales(num_rows);
  std::normal_distribution<double> normal;
  for (size_t i = 0; i < keys.size(); ++i) {
    if constexpr (kBytes) {
      keys[i] = float32_to_float8(static_cast<float>(100 * normal(random)));
    } else {
      keys[i] = rounded<T>(normal(random));
    }
  }
  for (size_t i = 0; i < num_rows; ++i) scales[i] = 0.01F + 0.0001F * static_cast<float>(i % 7);
  const int head = shape.heads - 1;
  const auto run = [&](int first, int count, Array<float>& out) {
    AttentionWeightsArgs args;
    args.q = {q.data() + first * columns, kDType<T>, count, columns};
    args.pages.keys = {keys.data(), kBytes ? DType::kFloat8 : kDType<T>,
                       static_cast<int64_t>(num_rows), shape.head_dim};
    args.pages.key_scales = {scales.data(), DType::kFloat32,
                             static_cast<int64_t>(num_rows) / kPageTokens, kPageTokens};
    args.pages.table = tables.data();
    args.pages.table_stride = stride;
    args.pages.kv_lens = kv_lens.data();
    args.pages.max_kv_len = shape.num_keys;
    args.sequence = 1;
    args.num_keys = shape.num_keys;
    args.head = head;
    args.num_heads = shape.heads;
    args.num_kv_heads = shape.kv_heads;
    args.head_dim = shape.head_dim;
    args.scale = 0.3F;
    args.out = {out.data(), DType::kFloat32, count, shape.num_keys};
    launch_attention_weights(args, emulated_stream());
  };
  Array<float> found(size(shape.rows, shape.num_keys));
  run(0, shape.rows, found);
  std::vector<double> expected;
  for (int row = 0; row < shape.rows; ++row) {
    std::vector<double> scores;
    double maximum = -INFINITY, sum = 0;
    for (int key = 0; key < shape.num_keys; ++key) {
      const int page = table[static_cast<size_t>(stride + key / 64)];
      const size_t place =
          size(page * shape.kv_heads + shape.kv_heads - 1, 64) + static_cast<size_t>(key % 64);
      double score = 0;
      for (int c = 0; c < shape.head_dim; ++c) {
        const Key element =
            keys[place * static_cast<size_t>(shape.head_dim) + static_cast<size_t>(c)];
        double number = 0;
        if constexpr (kBytes) {
          number =
              static_cast<double>(float8_to_float32(element)) * static_cast<double>(scales[place]);
        } else {
          number = to_double(element);
        }
        score += number *
                 to_double(q[size(row, columns) + static_cast<size_t>(head * shape.head_dim + c)]);
      }
      scores.push_back(static_cast<double>(0.3F) * score);
      maximum = std::max(maximum, scores.back());
    }
    for (double& score : scores) sum += score = std::exp(score - maximum);
    for (const double score : scores) expected.push_back(score / sum);
  }
  CHECK_WITHIN(error_of(found, expected), 2e-6);
  for (int row = 0; row < shape.rows; ++row) {
    Array<float> alone(static_cast<size_t>(shape.num_keys));
    run(row, 1, alone);
    CHECK(std::memcmp(alone.data(), found.data() + row * shape.num_keys,
                      alone.size() * sizeof(float)) == 0);
  }
}

}  // namespace

TEST(attention_weights) {
  for (unsigned seed = 0; seed < 3; ++seed) {
    check_weights<__half, __half>({3, 4, 2, 16, 70}, seed);
    check_weights<__nv_bfloat16, __nv_bfloat16>({1, 2, 2, 64, 1}, seed);
    check_weights<__half, __half>({2, 1, 1, 136, 300}, seed);
    check_weights<__half, uint8_t>({2, 2, 1, 64, 129}, seed);
    check_weights<__nv_bfloat16, uint8_t>({1, 3, 3, 8, 64}, seed);
  }
}

}  // namespace packhorse::cuda
