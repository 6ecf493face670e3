// Hopper's attention without a cache: TMA, mbarriers and wgmma, against float64.
#include "attention_kernels.h"
#include "emulated_stream.h"
#include "emulated_test.h"

namespace packhorse::cuda {
namespace {

using namespace packhorse::emulated_test;

struct Shape {
  int heads = 2, kv_heads = 1, head_dim = 64;
  AttentionMask mask{};
};

template <class T>
void check(const Shape& shape, const std::vector<int>& lengths, int sm_count, unsigned seed) {
  emulated::set_seed(seed);
  std::mt19937 random(seed);
  std::vector<int32_t> offsets = {0};
  for (const int length : lengths) offsets.push_back(offsets.back() + length);
  const int tokens = offsets.back();
  const auto d = static_cast<size_t>(shape.head_dim);
  const auto width = static_cast<size_t>(shape.heads) * d;
  const auto kv_width = static_cast<size_t>(shape.kv_heads) * d;
  Array<T> q(static_cast<size_t>(tokens) * width), k(static_cast<size_t>(tokens) * kv_width),
      v(k.size()), out(q.size());
  Array<int32_t> cu_seqlens(offsets);
  Array<int32_t> workspace(1);
  workspace[0] = 0;
  fill_normal(q, random);
  fill_normal(k, random);
  fill_normal(v, random);
  AttentionArgs p;
  const auto columns = static_cast<int64_t>(width), kv_columns = static_cast<int64_t>(kv_width);
  p.q = {q.data(), kDType<T>, tokens, columns};
  p.k = {k.data(), kDType<T>, tokens, kv_columns};
  p.v = {v.data(), kDType<T>, tokens, kv_columns};
  p.out = {out.data(), kDType<T>, tokens, columns};
  p.queries = p.keys = {.num_tokens = tokens,
                        .num_sequences = static_cast<int64_t>(lengths.size()),
                        .max_seqlen = *std::max_element(lengths.begin(), lengths.end()),
                        .cu_seqlens = cu_seqlens.data()};
  p.num_heads = shape.heads;
  p.num_kv_heads = shape.kv_heads;
  p.head_dim = shape.head_dim;
  p.scale = 1 / std::sqrt(static_cast<float>(shape.head_dim));
  p.mask = shape.mask;
  if (shape.head_dim > 64) {
    launch_attention_128(p, workspace.data(), sm_count);
  } else if (shape.head_dim <= 32) {
    launch_attention_32(p, workspace.data(), sm_count);
  } else {
    launch_attention_sm90(p, workspace.data(), emulated_stream(sm_count));
  }
  CHECK(workspace[0] == 0);

  std::vector<double> expected(out.size());
  for (size_t b = 0; b < lengths.size(); ++b) {
    for (int i = 0; i < lengths[b]; ++i) {
      const int first = shape.mask.window_left < 0 ? 0 : std::max(0, i - shape.mask.window_left);
      const int right = shape.mask.window_right < 0 ? lengths[b] : shape.mask.window_right;
      const int last = shape.mask.causal ? i : std::min(lengths[b] - 1, i + right);
      for (int h = 0; h < shape.heads; ++h) {
        const T* const row =
            q.data() + static_cast<size_t>(offsets[b] + i) * width + static_cast<size_t>(h) * d;
        const size_t kv = static_cast<size_t>(h / (shape.heads / shape.kv_heads)) * d;
        std::vector<double> weights;
        double sum = 0;
        for (int j = first; j <= last; ++j) {
          const T* const key = k.data() + static_cast<size_t>(offsets[b] + j) * kv_width + kv;
          double score = 0;
          for (size_t c = 0; c < d; ++c) score += to_double(row[c]) * to_double(key[c]);
          weights.push_back(std::exp(score / std::sqrt(static_cast<double>(d))));
          sum += weights.back();
        }
        for (int j = first; j <= last; ++j) {
          const T* const value = v.data() + static_cast<size_t>(offsets[b] + j) * kv_width + kv;
          for (size_t c = 0; c < d; ++c) {
            expected[static_cast<size_t>(row - q.data()) + c] +=
                weights[static_cast<size_t>(j - first)] / sum * to_double(value[c]);
          }
        }
      }
    }
  }
  CHECK_WITHIN(error_of(out, expected), 8 * kEpsilon<T>);
}

TEST(sm90_one_tile_of_keys) {
  for (unsigned seed = 0; seed < 9; ++seed) check<__half>({}, {5, 70, 128, 1}, 2, seed);
}

TEST(sm90_ping_pong) {
  for (unsigned seed = 0; seed < 9; ++seed) check<__nv_bfloat16>({}, {5, 300, 128, 140}, 2, seed);
}

TEST(sm90_masks) {
  for (unsigned seed = 0; seed < 3; ++seed) {
    check<__half>({.mask = {.causal = true}}, {200, 1, 129}, 2, seed);
    check<__half>({.mask = {.window_left = 30, .window_right = 9}}, {150, 64}, 2, seed);
  }
}

TEST(sm90_other_heads) {
  for (unsigned seed = 0; seed < 3; ++seed) {
    check<__half>({.head_dim = 128}, {5, 200, 130}, 2, seed);
    check<__half>({.heads = 1, .head_dim = 104}, {150}, 2, seed);
    check<__half>({.head_dim = 32}, {5, 200, 130}, 2, seed);
  }
}

}  // namespace
}  // namespace packhorse::cuda
