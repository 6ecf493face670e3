// Tests the products of few rows (MultiplyStripe): against arithmetic written here, and which
// layers use them.
#include <bit>

#include "core/math.h"
#include "cpu/gemm/gemm.h"
#include "cpu/gemm/gemm_int8.h"
#include "cpu/isa/kernels.h"
#include "cpu/isa/processor.h"
#include "cpu_test.h"

namespace packhorse::cpu_test {
namespace {

using cpu::kSkinnyRows;
using cpu::kStripeColumns;
using cpu::MultiplyStripe;

constexpr int64_t kPadding = 64;  // input features up to which a stripe is filled with zeros

// A random stripe and rows for it. `T` is an element of the weight, `U` one of x.
template <class T, class U>
struct Stripe {
  Stripe(int64_t in, T (*element)(std::mt19937&), U (*x_element)(std::mt19937&)) : in(in) {
    std::mt19937 generator(static_cast<unsigned>(in));
    const auto padded = static_cast<size_t>(round_up(in, kPadding));
    packed.resize(padded * kStripeColumns);
    weight.resize(static_cast<size_t>(in * kStripeColumns));
    x.resize(static_cast<size_t>(in * kSkinnyRows));
    for (int64_t k = 0; k < in; ++k) {
      for (int64_t n = 0; n < kStripeColumns; ++n) {
        const T value = element(generator);
        weight[static_cast<size_t>(k * kStripeColumns + n)] = value;
        packed[static_cast<size_t>(k / kGroup * kGroup * kStripeColumns + n * kGroup +
                                   k % kGroup)] = value;
      }
    }
    for (U& value : x) value = x_element(generator);
  }
  T at(int64_t k, int64_t n) const { return weight[static_cast<size_t>(k * kStripeColumns + n)]; }
  U x_at(int64_t row, int64_t k) const { return x[static_cast<size_t>(row * in + k)]; }
  MultiplyStripe task(int64_t rows, int64_t columns, void* out) const {
    MultiplyStripe task;
    task.x = x.data();
    task.x_stride = in;
    task.weight = packed.data();
    task.out = out;
    task.out_stride = columns;
    task.rows = rows;
    task.in_features = in;
    task.columns = columns;
    task.chunk = 64;
    task.stripe_bytes = static_cast<int64_t>(packed.size() * sizeof(T));
    return task;
  }

  static constexpr int64_t kGroup = 4 / sizeof(T);
  int64_t in;
  std::vector<T> packed, weight;
  std::vector<U> x;
};

uint16_t random_bfloat16(std::mt19937& generator) {
  return float32_to_bfloat16(std::normal_distribution<float>()(generator));
}
int8_t random_int8(std::mt19937& generator) {
  return static_cast<int8_t>(static_cast<int>(generator() % 255) - 127);
}
uint8_t random_uint8(std::mt19937& generator) { return static_cast<uint8_t>(generator() % 256); }

// The sum that AMX tiles give, by TDPBF16PS in Intel's manual.
float sum_of_tiles(const Stripe<uint16_t, uint16_t>& stripe, int64_t row, int64_t n,
                   int64_t chunk) {
  float whole = 0;
  for (int64_t first = 0; first < stripe.in; first += chunk) {
    float sum = 0;
    for (int64_t begin = first; begin < std::min(stripe.in, first + chunk); begin += 32) {
      float parts[2] = {};
      for (int64_t k = begin; k < std::min({stripe.in, first + chunk, begin + 32}); ++k) {
        parts[k % 2] = std::fma(bfloat16_to_float32(stripe.x_at(row, k)),
                                bfloat16_to_float32(stripe.at(k, n)), parts[k % 2]);
      }
      sum += parts[0] + parts[1];
    }
    whole = first == 0 ? sum : whole + sum;
  }
  return whole;
}

TEST(cpu_stripe_of_bfloat16) {
  if (!cpu::cpu_features().bfloat16) return;
  const std::vector<float> bias(kStripeColumns, 0.5f);
  for (int64_t in : {1, 2, 33, 64, 70, 200}) {
    const Stripe<uint16_t, uint16_t> stripe(in, random_bfloat16, random_bfloat16);
    for (int64_t rows = 1; rows <= kSkinnyRows; ++rows) {
      for (int64_t columns : {1, 17, 32, 50, 64}) {
        std::vector<float> plain(static_cast<size_t>(rows * columns)), tiles(plain);
        std::vector<uint16_t> rounded(plain.size());
        MultiplyStripe task = stripe.task(rows, columns, plain.data());
        task.bias = bias.data();
        cpu::kAvx512Bf16Kernels.multiply_stripe[0](task);
        task.out = rounded.data();
        cpu::kAvx512Bf16Kernels.multiply_stripe[1](task);
        if (cpu::cpu_features().amx) {  // its instructions are not emulated elsewhere
          task.out = tiles.data();
          cpu::kernels_here().multiply_stripe[0](task);
        }
        bool right = true;
        for (int64_t row = 0; row < rows; ++row) {
          for (int64_t n = 0; n < columns; ++n) {
            double expected = 0.5, size = 0.5;
            for (int64_t k = 0; k < in; ++k) {
              const double product = double{bfloat16_to_float32(stripe.x_at(row, k))} *
                                     bfloat16_to_float32(stripe.at(k, n));
              expected += product;
              size += std::abs(product);
            }
            const auto i = static_cast<size_t>(row * columns + n);
            right &= std::abs(plain[i] - expected) <= 1e-6 * size;
            right &= rounded[i] == float32_to_bfloat16(plain[i]);
            if (cpu::cpu_features().amx) {
              right &= tiles[i] == sum_of_tiles(stripe, row, n, task.chunk) + 0.5f;
            }
          }
        }
        CHECK(right);
      }
    }
  }
}

TEST(cpu_stripe_of_int8_is_exact) {
  const cpu::CpuFeatures features = cpu::cpu_features();
  const cpu::Kernels& kernels = cpu::kernels_here();
  const auto multiply =
      features.vnni ? kernels.multiply_stripe_int8 : kernels.multiply_stripe_int8_plain;
  if (multiply == nullptr) return;
  for (int64_t in : {1, 3, 4, 63, 66, 300}) {
    Stripe<int8_t, uint8_t> stripe(in, random_int8, random_uint8);
    const int most = cpu::int8_levels();
    for (uint8_t& value : stripe.x) value = static_cast<uint8_t>(std::min<int>(value, most));
    for (int64_t rows = 1; rows <= kSkinnyRows; ++rows) {
      for (int64_t columns : {1, 17, 32, 50, 64}) {
        std::vector<int32_t> sums(static_cast<size_t>(rows * columns) + 1, 77);
        multiply(stripe.task(rows, columns, sums.data()));
        bool right = sums.back() == 77;  // nothing is written beyond the last column
        for (int64_t row = 0; row < rows; ++row) {
          for (int64_t n = 0; n < columns; ++n) {
            int32_t expected = 0;
            for (int64_t k = 0; k < in; ++k) expected += stripe.x_at(row, k) * stripe.at(k, n);
            right &= sums[static_cast<size_t>(row * columns + n)] == expected;
          }
        }
        CHECK(right);
      }
    }
  }
}

// On the processors that these kernels were written on they must not be dropped without notice, as
// they are where oneDNN's layout or order of summation is another.
TEST(cpu_stripes_are_used) {
  const cpu::CpuFeatures features = cpu::cpu_features();
  cpu::GemmSet gemms(1);
  for (auto [in, out] : {std::pair{576, 960}, {1536, 576}, {600, 70}, {4096, 192}}) {
    for (DType out_dtype : {DType::kFloat32, DType::kBFloat16}) {
      if (!features.bfloat16) continue;
      const cpu::Gemm& gemm = gemms.get({.in_features = in,
                                         .out_features = out,
                                         .dtype = DType::kBFloat16,
                                         .out_dtype = out_dtype,
                                         .bias = in == 600});
      CHECK(gemm.columns_at_once(1) == kStripeColumns);
      CHECK(gemm.columns_at_once(kSkinnyRows + 1) > kStripeColumns);
    }
    if (!features.vnni || features.isa != cpu::Isa::kAvx512) continue;
    const cpu::Gemm& gemm =
        gemms.get({.in_features = in, .out_features = out, .dtype = DType::kInt8});
    CHECK(gemm.columns_at_once(kSkinnyRows) == kStripeColumns);
  }
}

}  // namespace
}  // namespace packhorse::cpu_test
