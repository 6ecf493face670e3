// Layers of bytes from rows on: the bytes of a kernel, sums of integers, and what the product's
// epilogue makes of these. The main loop is CUTLASS's, and is not emulated.
#include "core/int8.h"
#include "cuda/gemm/int8/int8.h"
#include "cuda/rowwise/rowwise.h"
#include "emulated_stream.h"
#include "emulated_test.h"

namespace packhorse::cuda {
namespace {

using namespace packhorse::emulated_test;

/// Weights in the layout in which CudaLinearPacker stores them.
std::vector<int8_t> packed(const std::vector<float>& weight, int n, int k,
                           const Int8Layout& layout) {
  std::vector<int8_t> result(layout.bytes);
  for (int r = 0; r < n; ++r) {
    int8_t* const q = result.data() + r * layout.columns;
    const float scale = quantize_int8(weight.data() + r * k, k, q);
    int64_t sum = 0;
    for (int c = 0; c < k; ++c) sum += q[c];
    const float offset = scale * static_cast<float>(sum);
    std::memcpy(result.data() + layout.scales + 4 * static_cast<size_t>(r), &scale, 4);
    std::memcpy(result.data() + layout.sums + 4 * static_cast<size_t>(r), &offset, 4);
  }
  return result;
}

float number_at(const std::vector<int8_t>& bytes, size_t begin, int i) {
  float value = 0;
  std::memcpy(&value, bytes.data() + begin + 4 * static_cast<size_t>(i), 4);
  return value;
}

TEST(int8_layouts_are_aligned) {
  for (const int64_t k : {8, 16, 24, 768, 3080}) {
    for (const int64_t n : {8, 40, 768}) {
      const Int8Layout layout(k, n);
      CHECK(layout.columns % 16 == 0 && layout.columns >= k && layout.columns < k + 16);
      // Vectors are loaded by 16 bytes, from column 8 i on.
      CHECK(layout.scales % 16 == 0 && layout.sums % 16 == 0);
      CHECK(layout.scales == static_cast<size_t>(layout.columns * n));
      CHECK(layout.bytes == layout.scales + 8 * static_cast<size_t>(n));
    }
  }
}

TEST(int8_layers_from_rows_on) {
  constexpr int kRows = 12;
  constexpr int kOut = 24;
  for (const int k : {8, 200, 768}) {
    emulated::set_seed(2);
    std::mt19937 random(static_cast<unsigned>(k));
    Array<__half> x(static_cast<size_t>(kRows * k));
    fill_normal(x, random);
    std::normal_distribution<double> normal(0, 1 / std::sqrt(static_cast<double>(k)));
    std::vector<float> weight(static_cast<size_t>(kOut * k));
    for (float& w : weight) w = static_cast<float>(normal(random));
    const Int8Layout layout(k, kOut);
    const std::vector<int8_t> bytes = packed(weight, kOut, k, layout);
    Array<uint8_t> a(static_cast<size_t>(kRows * layout.columns));
    Array<float> scales(kRows), offsets(kRows);
    launch_quantize_rows({x.data(), DType::kFloat16, kRows, k},
                         {a.data(), scales.data(), offsets.data()}, nullptr, emulated_stream());
    double most = 0;
    for (int r = 0; r < kRows; ++r) {
      for (int n = 0; n < kOut; ++n) {
        int32_t sum = 0;
        for (int64_t i = 0; i < layout.columns; ++i) {
          sum += a[static_cast<size_t>(r * layout.columns + i)] *
                 bytes[static_cast<size_t>(n * layout.columns + i)];
        }
        const auto row = static_cast<size_t>(r);
        const float found =
            dequantized(sum, scales[row], offsets[row], number_at(bytes, layout.scales, n),
                        number_at(bytes, layout.sums, n), 0.5f);
        double exact = 0.5;
        for (int i = 0; i < k; ++i) {
          exact += to_double(x[static_cast<size_t>(r * k + i)]) *
                   static_cast<double>(weight[static_cast<size_t>(n * k + i)]);
        }
        most = std::max(most, std::abs(static_cast<double>(found) - exact));
      }
    }
    CHECK_WITHIN(most, 0.05);
  }
}

}  // namespace
}  // namespace packhorse::cuda
