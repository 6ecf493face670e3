// Dense layers: rings of TMA copies, wgmma of 16-bit and e4m3 operands, stores by TMA.
#include <cuda_fp8.h>

#include "cuda/gemm/skinny/skinny.h"
#include "emulated_stream.h"
#include "emulated_test.h"
#include "gemm_kernels.h"

namespace packhorse::cuda {
namespace {

using namespace packhorse::emulated_test;

template <class T>
double value_of(T x) {
  if constexpr (sizeof(T) == 1) {
    return to_double(__half(__nv_cvt_fp8_to_halfraw(x, __NV_E4M3)));
  } else {
    return to_double(x);
  }
}

struct Layer {
  GemmParams params;
  Array<float> bias, column_scales, row_scales;
  Array<__half> residual, out;

  template <class T>
  Layer(const Array<T>& a, const Array<T>& weight, int rows, int n, int k, bool with_residual,
        unsigned seed)
      : bias(static_cast<size_t>(n)),
        column_scales(bias.size()),
        row_scales(static_cast<size_t>(rows)),
        residual(static_cast<size_t>(rows * n)),
        out(residual.size()) {
    std::mt19937 random(seed);
    fill_normal(bias, random);
    fill_normal(residual, random);
    for (size_t i = 0; i < bias.size(); ++i)
      column_scales[i] = 0.01f * static_cast<float>(i % 7 + 1);
    for (size_t i = 0; i < row_scales.size(); ++i)
      row_scales[i] = 0.1f * static_cast<float>(i % 5 + 1);
    params.a = a.data();
    params.lda = k;
    params.weight = weight.data();
    params.bias = bias.data();
    params.out = out.data();
    params.ldo = n;
    params.rows = rows;
    params.n = n;
    params.k = k;
    params.sm_count = 2;
    if (with_residual) {
      params.residual = residual.data();
      params.ldr = n;
    }
    if (sizeof(T) == 1) {
      params.float8.column_scales = column_scales.data();
      params.float8.row_scales = row_scales.data();
    }
  }

  template <class T>
  std::vector<double> reference(const Array<T>& a, const Array<T>& weight) const {
    std::vector<double> result(out.size());
    const auto n = static_cast<size_t>(params.n), k = static_cast<size_t>(params.k);
    for (size_t r = 0; r < static_cast<size_t>(params.rows); ++r) {
      for (size_t c = 0; c < n; ++c) {
        double sum = 0;
        for (size_t i = 0; i < k; ++i) sum += value_of(a[r * k + i]) * value_of(weight[c * k + i]);
        if (sizeof(T) == 1) sum *= double{row_scales[r]} * double{column_scales[c]};
        sum += bias[c];
        if (params.residual != nullptr) sum += to_double(residual[r * n + c]);
        result[r * n + c] = sum;
      }
    }
    return result;
  }
};

TEST(gemm_half) {
  for (unsigned seed = 0; seed < 6; ++seed) {
    emulated::set_seed(seed);
    const int rows = seed % 2 == 0 ? 70 : 300, n = 136, k = 200;
    Array<__half> a(static_cast<size_t>(rows * k)), weight(static_cast<size_t>(n * k));
    std::mt19937 random(seed);
    fill_normal(a, random);
    fill_normal(weight, random, 0.1);
    Layer layer(a, weight, rows, n, k, seed >= 3, seed);
    const std::vector<double> expected = layer.reference(a, weight);
    launch_half_gemm(layer.params, GemmTile::k64x64);
    CHECK_WITHIN(error_of(layer.out, expected), 4 * kEpsilon<__half>);
    Array<__half> first(layer.out.size());
    std::memcpy(first.data(), layer.out.data(), first.size() * 2);
    layer.out.fill_bytes(0xff);
    launch_half_gemm(layer.params, GemmTile::k128x128);
    CHECK(layer.out.same_bits(first));
  }
}

TEST(gemm_skinny_rows_same_bits) {
  for (unsigned seed = 0; seed < 3; ++seed) {
    emulated::set_seed(seed);
    const int rows = 5, n = 104, k = 192;
    Array<__half> a(static_cast<size_t>(rows * k)), weight(static_cast<size_t>(n * k));
    std::mt19937 random(seed);
    fill_normal(a, random);
    fill_normal(weight, random, 0.1);
    Layer layer(a, weight, rows, n, k, seed == 1, seed);
    launch_half_gemm(layer.params, GemmTile::k64x64);
    Array<__half> first(layer.out.size());
    std::memcpy(first.data(), layer.out.data(), first.size() * 2);
    layer.out.fill_bytes(0xff);
    layer.params.sm_count = seed == 2 ? 20 : 2;
    launch_gemm_skinny(layer.params, emulated_stream());
    CHECK(layer.out.same_bits(first));
  }
}

// Sums in parts, of one to five boxes and more, by the kernels for few and for many rows.
TEST(gemm_split_k_same_bits) {
  struct Case {
    int rows, n, k, parts, sm_count;
  };
  const Case cases[] = {{1, 104, 512, 4, 20},   {8, 104, 640, 2, 4},  {5, 72, 320, 5, 20},
                        {16, 104, 1024, 4, 20}, {11, 104, 256, 2, 4}, {13, 40, 960, 3, 20},
                        {9, 136, 1024, 4, 9}};
  unsigned seed = 0;
  int others = 0;  // cases in which a sum in one part has other bits
  for (const Case& one : cases) {
    emulated::set_seed(++seed);
    Array<__half> a(static_cast<size_t>(one.rows * one.k));
    Array<__half> weight(static_cast<size_t>(one.n * one.k));
    std::mt19937 random(seed);
    fill_normal(a, random);
    fill_normal(weight, random, 0.1);
    Layer layer(a, weight, one.rows, one.n, one.k, seed % 2 == 0, seed);
    layer.params.parts = one.parts;
    layer.params.sm_count = one.sm_count;
    const std::vector<double> expected = layer.reference(a, weight);
    launch_half_gemm(layer.params, GemmTile::k64x64);
    CHECK_WITHIN(error_of(layer.out, expected), 4 * kEpsilon<__half>);
    Array<__half> first(layer.out.size());
    std::memcpy(first.data(), layer.out.data(), first.size() * 2);
    layer.out.fill_bytes(0xff);
    launch_half_gemm(layer.params, GemmTile::kHalves128x128);
    CHECK(layer.out.same_bits(first));
    layer.out.fill_bytes(0xff);
    CHECK(is_skinny(layer.params));
    launch_gemm_skinny(layer.params, emulated_stream());
    CHECK(layer.out.same_bits(first));
    layer.params.parts = 1;
    layer.out.fill_bytes(0xff);
    launch_half_gemm(layer.params, GemmTile::k64x64);
    others += layer.out.same_bits(first) ? 0 : 1;
  }
  CHECK(others > 0);
}

TEST(gemm_float8) {
  for (unsigned seed = 0; seed < 3; ++seed) {
    emulated::set_seed(seed);
    const int rows = 90, n = 80, k = 272;
    Array<__nv_fp8_storage_t> a(static_cast<size_t>(rows * k)), weight(static_cast<size_t>(n * k));
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, 2);
    for (size_t i = 0; i < a.size(); ++i)
      a[i] = __nv_cvt_float_to_fp8(normal(random), __NV_SATFINITE, __NV_E4M3);
    for (size_t i = 0; i < weight.size(); ++i)
      weight[i] = __nv_cvt_float_to_fp8(normal(random), __NV_SATFINITE, __NV_E4M3);
    Layer layer(a, weight, rows, n, k, false, seed);
    launch_float8_gemm(layer.params, GemmTile::k64x64);
    CHECK_WITHIN(error_of(layer.out, layer.reference(a, weight)), 4 * kEpsilon<__half>);
  }
}

}  // namespace
}  // namespace packhorse::cuda
