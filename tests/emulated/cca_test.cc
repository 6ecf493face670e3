// Compressed convolutional attention's heads, by tensor cores and by the plain kernel.
#include "cuda/cca/cca.h"

#include "emulated_stream.h"
#include "emulated_test.h"
#include "ops/args/cca.h"

namespace packhorse::cuda {
namespace {

using namespace packhorse::emulated_test;

struct Sizes {
  int heads = 2, kv_heads = 1, head_dim = 128, depthwise = 2, grouped = 2, delayed = 64;
};

template <class T>
struct Layer {
  Sizes sizes;
  int mixed_heads, reach;
  size_t mixed, width;
  Array<float> depthwise, depthwise_bias, grouped_bias, temperature, first_values;
  Array<T> grouped;

  explicit Layer(const Sizes& s, unsigned seed)
      : sizes(s),
        mixed_heads(s.heads + s.kv_heads),
        reach(s.depthwise + s.grouped - 2),
        mixed(static_cast<size_t>(mixed_heads * s.head_dim)),
        width(mixed + static_cast<size_t>(s.kv_heads * s.head_dim)),
        depthwise(static_cast<size_t>(s.depthwise) * mixed),
        depthwise_bias(mixed),
        grouped_bias(mixed),
        temperature(static_cast<size_t>(s.kv_heads)),
        first_values(width - mixed),
        grouped(mixed * static_cast<size_t>(s.grouped * s.head_dim)) {
    std::mt19937 random(seed);
    fill_normal(depthwise, random);
    fill_normal(depthwise_bias, random);
    fill_normal(grouped_bias, random);
    fill_normal(temperature, random);
    fill_normal(first_values, random);
    fill_normal(grouped, random, 1 / std::sqrt(2.0 * s.head_dim));
  }

  /// The heads of sequences that begin here.
  std::vector<double> reference(const Array<T>& latents,
                                const std::vector<int32_t>& offsets) const {
    std::vector<double> out(latents.size());
    const auto d = static_cast<size_t>(sizes.head_dim);
    for (size_t b = 0; b + 1 < offsets.size(); ++b) {
      for (int t = offsets[b]; t < offsets[b + 1]; ++t) {
        const auto at = [&](int token, size_t column) {
          return token < offsets[b]
                     ? 0.0
                     : to_double(latents[static_cast<size_t>(token) * width + column]);
        };
        for (int h = 0; h < mixed_heads; ++h) {
          const size_t begin = static_cast<size_t>(h) * d;
          std::vector<double> sums(d);
          for (size_t c = 0; c < d; ++c) sums[c] = grouped_bias[begin + c];
          for (int tap = 0; tap < sizes.grouped; ++tap) {
            for (size_t i = 0; i < d; ++i) {
              double x = depthwise_bias[begin + i];
              for (int j = 0; j < sizes.depthwise; ++j) {
                x += double{depthwise[static_cast<size_t>(j) * mixed + begin + i]} *
                     at(t - reach + tap + j, begin + i);
              }
              const size_t row = (static_cast<size_t>(h * sizes.grouped + tap)) * d + i;
              for (size_t c = 0; c < d; ++c) sums[c] += x * to_double(grouped[row * d + c]);
            }
          }
          const int group = sizes.heads / sizes.kv_heads;
          const bool query = h < sizes.heads;
          double squares = 0;
          for (size_t c = 0; c < d; ++c) {
            sums[c] += 0.5 * at(t, begin + c);
            const int others = query ? 1 : group;
            const int other = query ? sizes.heads + h / group : (h - sizes.heads) * group;
            for (int o = 0; o < others; ++o)
              sums[c] += 0.5 / others * at(t, static_cast<size_t>(other + o) * d + c);
            squares += sums[c] * sums[c];
          }
          const double factor = std::sqrt(static_cast<double>(d)) / std::sqrt(squares) *
                                (query ? 1 : temperature[static_cast<size_t>(h - sizes.heads)]);
          for (size_t c = 0; c < d; ++c)
            out[static_cast<size_t>(t) * width + begin + c] = sums[c] * factor;
        }
        for (size_t c = mixed; c < width; ++c) {
          const bool own = c - mixed < static_cast<size_t>(sizes.delayed);
          out[static_cast<size_t>(t) * width + c] =
              own              ? at(t, c)
              : t > offsets[b] ? at(t - 1, c)
                               : to_double(rounded<T>(first_values[c - mixed]));
        }
      }
    }
    return out;
  }

  CcaArgs args(Array<T>& latents, Array<T>& out, const Array<int32_t>& cu_seqlens) const {
    const auto view = [](void* data, size_t rows, size_t columns) {
      return TensorView(data, kDType<T>, static_cast<int64_t>(rows), static_cast<int64_t>(columns));
    };
    CcaArgs a;
    const size_t tokens = latents.size() / width;
    a.latents = view(latents.data(), tokens, width);
    a.out = view(out.data(), tokens, width);
    a.num_heads = sizes.heads;
    a.num_kv_heads = sizes.kv_heads;
    a.head_dim = a.model_dim = sizes.head_dim;
    a.depthwise_width = sizes.depthwise;
    a.grouped_width = sizes.grouped;
    a.depthwise = depthwise.data();
    a.depthwise_bias = depthwise_bias.data();
    a.grouped = view(const_cast<T*>(grouped.data()), mixed * static_cast<size_t>(sizes.grouped),
                     static_cast<size_t>(sizes.head_dim));
    a.grouped_bias = grouped_bias.data();
    a.temperature = temperature.data();
    a.delayed_column = sizes.delayed;
    a.first_values = first_values.data();
    a.batch.num_tokens = static_cast<int64_t>(tokens);
    a.batch.num_sequences = static_cast<int64_t>(cu_seqlens.size() - 1);
    a.batch.cu_seqlens = cu_seqlens.data();
    return a;
  }
};

template <class T>
void check(const Sizes& sizes, const std::vector<int32_t>& offsets, unsigned seed, double steps) {
  emulated::set_seed(seed);
  const Layer<T> layer(sizes, seed);
  std::mt19937 random(seed);
  const auto tokens = static_cast<size_t>(offsets.back());
  Array<T> latents(tokens * layer.width), out(latents.size());
  fill_normal(latents, random);
  const Array<int32_t> cu_seqlens(offsets);
  launch_cca(layer.args(latents, out, cu_seqlens), false, emulated_stream());
  CHECK_WITHIN(error_of(out, layer.reference(latents, offsets)), steps * kEpsilon<T>);
  // The first sequence alone, by the kernel for few rows where it is short.
  const auto first = static_cast<size_t>(offsets[1]);
  Array<T> its(first * layer.width), alone(its.size());
  std::memcpy(its.data(), latents.data(), its.size() * sizeof(T));
  const Array<int32_t> one({0, offsets[1]});
  launch_cca(layer.args(its, alone, one), false, emulated_stream());
  CHECK(std::memcmp(alone.data(), out.data(), alone.size() * sizeof(T)) == 0);
}

TEST(convolution_by_tensor_cores) {
  for (unsigned seed = 0; seed < 3; ++seed) {
    check<__half>({}, {0, 20, 21, 110}, seed, 16);
    check<__nv_bfloat16>({.heads = 4, .kv_heads = 2}, {0, 3, 17}, seed, 16);
  }
}

TEST(convolution_of_other_sizes) {
  for (unsigned seed = 0; seed < 3; ++seed) {
    check<__half>({.head_dim = 40, .depthwise = 3, .grouped = 2, .delayed = 20}, {0, 5, 6, 23},
                  seed, 8);
  }
}

}  // namespace
}  // namespace packhorse::cuda
