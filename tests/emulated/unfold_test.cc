// Rows around each token side by side: exactly, with zeros outside of its sequence, and with the
// rows of a convolution that steps over some.
#include "cuda/rowwise/rowwise.h"
#include "emulated_stream.h"
#include "emulated_test.h"

namespace packhorse::cuda {
namespace {

using namespace packhorse::emulated_test;

void check(const std::vector<int>& lengths, int columns, int width, int stride, unsigned seed) {
  emulated::set_seed(seed);
  std::mt19937 random(seed);
  std::vector<int32_t> begins{0};
  for (const int length : lengths) begins.push_back(begins.back() + length);
  const int64_t tokens = begins.back();
  Array<__half> x(static_cast<size_t>(stride * tokens * columns));
  Array<__half> out(static_cast<size_t>(tokens * width * columns));
  fill_normal(x, random);
  const Array<int32_t> cu_seqlens(begins);
  launch_unfold({.x = {x.data(), DType::kFloat16, stride * tokens, columns},
                 .width = width,
                 .stride = stride,
                 .batch = {.num_tokens = tokens,
                           .num_sequences = static_cast<int64_t>(lengths.size()),
                           .cu_seqlens = cu_seqlens.data()},
                 .out = {out.data(), DType::kFloat16, tokens, int64_t{width} * columns}},
                emulated_stream());
  size_t at = 0;
  for (size_t b = 0; b < lengths.size(); ++b) {
    const int64_t begin = int64_t{stride} * begins[b];
    const int64_t end = int64_t{stride} * begins[b + 1];
    for (int64_t middle = begin; middle < end; middle += stride) {
      for (int64_t row = middle - width / 2; row <= middle + width / 2; ++row) {
        for (int c = 0; c < columns; ++c, ++at) {
          const bool inside = row >= begin && row < end;
          const double expected = inside ? to_double(x[static_cast<size_t>(row * columns + c)]) : 0;
          CHECK(to_double(out[at]) == expected);
        }
      }
    }
  }
}

}  // namespace

TEST(unfold) {
  for (unsigned seed = 0; seed < 3; ++seed) {
    check({3, 0, 1, 9, 2}, 16, 3, 1, seed);
    check({3, 0, 1, 9, 2}, 16, 3, 2, seed);
    check({5}, 264, 5, 2, seed);
    check({1, 1}, 8, 1, 3, seed);
  }
}

}  // namespace packhorse::cuda
