// Products with weights in groups: the kernels for few rows, for many and for other devices,
// against float64, and against each other, bit by bit.
#include <memory>

#include "core/float_convert.h"
#include "cuda/gemm/w4a16/w4a16.h"
#include "emulated_stream.h"
#include "emulated_test.h"

namespace packhorse::cuda {
namespace {

using namespace packhorse::emulated_test;

struct Layer {
  int n, k;
  WeightGroups groups;
  bool bias = true;
  bool residual = false;
  bool gated = false;
  bool rotated = false;
  Activation activation = Activation::kNone;
  int padding = 0;  // elements between the rows of x and of the result, and before the first
};

double activated(Activation activation, double x) {
  switch (activation) {
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kGelu:
      return x * std::erfc(-x / std::sqrt(2.0)) / 2;
    default:
      return x;
  }
}

/// A layer, and its input of so many rows.
struct Case {
  Layer layer;
  int rows, columns;
  int64_t ldx, ldo;
  Array<__half> x, residual;
  Array<uint8_t> packed;
  Array<float> bias, positions, frequencies;
  std::vector<double> weight;                     // the numbers that the values stand for, [n, k]
  static constexpr int kHead = 16, kRotated = 8;  // columns of a head, and those that are rotated

  Case(const Layer& layer, int rows, unsigned seed)
      : layer(layer),
        rows(rows),
        columns(layer.gated ? layer.n / 2 : layer.n),
        ldx(layer.k + layer.padding),
        ldo(columns + layer.padding),
        x(static_cast<size_t>(rows * ldx)),
        residual(static_cast<size_t>(rows * ldo)),
        packed(w4a16_layout(layer.n, layer.k, layer.groups).bytes()),
        bias(static_cast<size_t>(layer.n)),
        positions(static_cast<size_t>(rows)),
        frequencies(kRotated / 2),
        weight(static_cast<size_t>(layer.n) * static_cast<size_t>(layer.k)) {
    std::mt19937 random(seed);
    fill_normal(x, random);
    fill_normal(residual, random);
    fill_normal(bias, random);
    for (int i = 0; i < rows; ++i) positions[static_cast<size_t>(i)] = static_cast<float>(3 * i);
    for (size_t i = 0; i < frequencies.size(); ++i) {
      frequencies[i] = 1 / static_cast<float>(1 + 5 * i);
    }
    make_weight(random);
    // Fills the gaps between rows with NaN, since kernels must not use them.
    for (int r = 0; r < rows; ++r) {
      for (int64_t c = layer.k; c < ldx; ++c)
        x[static_cast<size_t>(r * ldx + c)] = rounded<__half>(NAN);
    }
  }

  void make_weight(std::mt19937& random) {
    const WeightGroups& groups = layer.groups;
    const auto count = static_cast<size_t>(groups.count(layer.k));
    const auto n = static_cast<size_t>(layer.n);
    const auto k = static_cast<size_t>(layer.k);
    std::vector<uint8_t> values(n * k);
    std::vector<uint16_t> scales(n * count), minima(n * count);
    const double unit = 1 / std::sqrt(layer.k) / groups.zero();
    std::uniform_real_distribution<double> around(0.5, 1.5);
    for (size_t i = 0; i < scales.size(); ++i) {
      const double scale = around(random) * unit;
      scales[i] = float32_to_float16(static_cast<float>(scale));
      minima[i] = float32_to_float16(static_cast<float>(-scale * groups.zero() * around(random)));
    }
    for (uint8_t& value : values) value = static_cast<uint8_t>(random() % (1u << groups.bits));
    for (size_t i = 0; i < values.size(); ++i) {
      const size_t group = i / k * count + i % k / static_cast<size_t>(groups.size);
      const double scale = static_cast<double>(float16_to_float32(scales[group]));
      const double minimum = groups.minima ? static_cast<double>(float16_to_float32(minima[group]))
                                           : -scale * groups.zero();
      weight[i] = to_double(rounded<__half>(scale * values[i] + minimum));
    }
    const GroupedWeight given{values.data(), scales.data(), minima.data()};
    const W4a16Layout layout = w4a16_layout(layer.n, layer.k, groups);
    const size_t strip = layout.bytes() / static_cast<size_t>(layout.strips);
    for (int i = 0; i < layout.strips; ++i) {
      pack_groups_strip(given, layer.n, layer.k, groups, i,
                        packed.data() + static_cast<size_t>(i) * strip);
    }
  }

  GemmParams params(Array<__half>& out, int first, int count) {
    GemmParams p;
    p.a = x.data() + first * ldx;
    p.lda = ldx;
    p.weight = packed.data();
    if (layer.bias) p.bias = bias.data();
    if (layer.residual) p.residual = residual.data() + first * ldo;
    p.ldr = ldo;
    p.out = out.data() + first * ldo;
    p.ldo = ldo;
    p.rows = count;
    p.n = layer.n;
    p.k = layer.k;
    p.activation = layer.activation;
    p.gated = layer.gated;
    p.groups = layer.groups;
    p.sm_count = 3;
    if (layer.rotated) {
      p.rotation.positions = positions.data() + first;
      p.rotation.frequencies = frequencies.data();
      p.rotation.dims = kRotated;
      p.rotation.head_dim = kHead;
      p.rotation.columns = columns / 2 / kHead * kHead;
    }
    return p;
  }

  std::vector<double> reference() const {
    std::vector<double> result(static_cast<size_t>(rows * ldo));
    for (int r = 0; r < rows; ++r) {
      const auto sum = [&](int feature) {
        double total = layer.bias ? static_cast<double>(bias[static_cast<size_t>(feature)]) : 0;
        for (int i = 0; i < layer.k; ++i) {
          total += to_double(x[static_cast<size_t>(r * ldx + i)]) *
                   weight[static_cast<size_t>(feature) * static_cast<size_t>(layer.k) +
                          static_cast<size_t>(i)];
        }
        return total;
      };
      double* row = result.data() + r * ldo;
      for (int c = 0; c < columns; ++c) {
        const int feature = layer.gated ? c / kGateBlock * 2 * kGateBlock + c % kGateBlock : c;
        row[c] = activated(layer.activation, sum(feature));
        if (layer.gated) row[c] *= sum(feature + kGateBlock);
      }
      for (int c = 0; layer.rotated && c < columns / 2 / kHead * kHead; c += 2) {
        if (c % kHead >= kRotated) continue;
        const double angle = static_cast<double>(positions[static_cast<size_t>(r)]) *
                             static_cast<double>(frequencies[static_cast<size_t>(c % kHead / 2)]);
        const double a = row[c], b = row[c + 1];
        row[c] = a * std::cos(angle) - b * std::sin(angle);
        row[c + 1] = b * std::cos(angle) + a * std::sin(angle);
      }
      for (int c = 0; layer.residual && c < columns; ++c) {
        row[c] += to_double(residual[static_cast<size_t>(r * ldo + c)]);
      }
    }
    return result;
  }
};

using Launch = void (*)(const GemmParams&, const KernelStream&);

/// Checks rows of `out`, and that nothing between them was written.
void check_rows(const Case& one, const Array<__half>& out, const std::vector<double>& expected) {
  double most = 0;
  int written = 0;
  for (int r = 0; r < one.rows; ++r) {
    for (int64_t c = 0; c < one.ldo; ++c) {
      const auto at = static_cast<size_t>(r * one.ldo + c);
      const double found = to_double(out[at]);
      if (c >= one.columns) {
        written += std::isnan(found) ? 0 : 1;
        continue;
      }
      const double error = std::abs(found - expected[at]) / std::max(1.0, std::abs(expected[at]));
      most = error <= most ? most : error;
    }
  }
  CHECK_WITHIN(most, 4 * kEpsilon<__half>);
  CHECK(written == 0);
}

void check(const Layer& layer, int rows, unsigned seed) {
  emulated::set_seed(seed);
  Case one(layer, rows, seed);
  const std::vector<double> expected = one.reference();
  const auto run = [&](Launch launch, int at_once, const int32_t* count = nullptr) {
    auto out = std::make_unique<Array<__half>>(static_cast<size_t>(rows * one.ldo));
    for (int first = 0; first < rows; first += at_once) {
      GemmParams p = one.params(*out, first, std::min(at_once, rows - first));
      p.row_count = count;
      launch(p, emulated_stream());
    }
    return out;
  };
  const auto held = run(launch_gemm_w4a16_many, rows);
  const Array<__half>& many = *held;
  check_rows(one, many, expected);
  const int most_skinny = most_w4a16_skinny_rows(one.params(*held, 0, rows));
  for (const int at_once : {8, 16, 17, 32}) {
    if (at_once > most_skinny || (at_once > 8 && rows <= at_once / 2)) break;
    const auto few = run(launch_gemm_w4a16_skinny, at_once);
    check_rows(one, *few, expected);
    CHECK(few->same_bits(many));
  }
  if (!layer.gated && !layer.rotated) {
    CHECK(run(launch_gemm_w4a16_portable, rows)->same_bits(many));
  }
  // Fewer rows than there is room for, as a recorded graph has.
  Array<int32_t> count(std::vector<int32_t>{rows / 2});
  const auto check_half = [&](const Array<__half>& out) {
    const auto half = static_cast<size_t>(rows / 2 * one.ldo);
    CHECK(std::memcmp(out.data(), many.data(), half * sizeof(__half)) == 0);
    // Rows after these may hold anything, but rows past their end are not touched.
  };
  check_half(*run(launch_gemm_w4a16_many, rows, count.data()));
  if (rows <= most_skinny) {
    check_half(*run(launch_gemm_w4a16_skinny, rows, count.data()));
  }
}

constexpr WeightGroups kQ4_0{4, 32, false}, kQ4_1{4, 32, true}, kInt4_128{4, 128, false},
    kInt4_64{4, 64, true}, kQ8_0{8, 32, false}, kQ6_K{8, 16, false}, kInt8_16{8, 16, true},
    kInt8_128{8, 128, true}, kWhole{4, 1024, true};

TEST(gemm_w4a16_forms) {
  unsigned seed = 0;
  for (const WeightGroups& groups :
       {kQ4_0, kQ4_1, kInt4_128, kInt4_64, kQ8_0, kQ6_K, kInt8_16, kInt8_128, kWhole}) {
    check({40, 264, groups}, 3, seed++);
    check({8, 72, groups}, 19, seed++);
  }
}

TEST(gemm_w4a16_parts_of_sums) {
  // 17 blocks in parts of 6, 6 and 5; 9 in parts of 6 and 3; 33 in parts of 6, the last of 3; 32 in
  // eight parts.
  check({56, 2104, kInt4_128}, 9, 1);
  check({24, 1152, kQ4_1}, 33, 2);
  check({200, 2048, kQ8_0, false, true}, 70, 3);
  check({24, 4168, kQ4_1}, 17, 4);
  Layer gated{32, 4096, kInt8_16};
  gated.gated = true;
  check(gated, 16, 5);
}

// Takes the rounded result away by a residual, which shows the last bits of sums: rounding to
// float16 hides them, and another split of the sums would change them.
TEST(gemm_w4a16_last_bits) {
  const Layer layers[] = {{56, 2104, kInt4_128}, {24, 1152, kQ4_1}, {40, 4168, kQ8_0}};
  unsigned seed = 0;
  for (Layer layer : layers) {
    const int rows = 16;
    emulated::set_seed(++seed);
    Case first(layer, rows, seed);
    Array<__half> rounded(static_cast<size_t>(rows * first.ldo));
    launch_gemm_w4a16_many(first.params(rounded, 0, rows), emulated_stream());
    layer.residual = true;
    Case one(layer, rows, seed);
    for (size_t i = 0; i < rounded.size(); ++i) one.residual[i] = -rounded[i];
    Array<__half> many(rounded.size()), other(rounded.size());
    const GemmParams p = one.params(other, 0, rows);
    launch_gemm_w4a16_many(one.params(many, 0, rows), emulated_stream());
    int zeros = 0;
    for (size_t i = 0; i < many.size(); ++i) zeros += to_double(many[i]) == 0 ? 1 : 0;
    CHECK(zeros < static_cast<int>(many.size()) / 8);
    for (const Launch launch : {launch_gemm_w4a16_skinny, launch_gemm_w4a16_portable}) {
      other.fill_bytes(0xff);
      launch(p, emulated_stream());
      CHECK(other.same_bits(many));
    }
  }
}

TEST(gemm_w4a16_many_tiles) {
  for (unsigned seed : {0u, 4u, 8u}) check({264, 128, kInt4_64, true, true}, 150, seed);
  check({400, 64, kQ4_0}, 300, 1);
  check({264, 640, kQ6_K}, 65, 2);
  for (unsigned seed : {1u, 5u, 6u}) check({520, 520, kQ4_1}, 5, seed);
}

// Stages of a ring are used again within a tile, and by further tiles.
TEST(gemm_w4a16_rings) {
  for (unsigned seed = 0; seed < 9; ++seed) {
    check({784, 896, seed % 2 == 0 ? kInt8_16 : kQ8_0}, 9, seed);
    check({200, 2048, kQ4_0}, 9, seed);
  }
}

TEST(gemm_w4a16_epilogues) {
  Layer gated{192, 136, kInt4_128};
  gated.gated = true;
  gated.activation = Activation::kSilu;
  check(gated, 20, 4);
  gated.k = 1032;
  gated.residual = true;
  gated.padding = 8;
  check(gated, 7, 5);
  Layer rotated{144, 1024, kQ8_0};
  rotated.rotated = true;
  rotated.padding = 16;
  check(rotated, 37, 6);
  Layer plain{48, 200, kQ4_1};
  plain.activation = Activation::kGelu;
  plain.residual = true;
  plain.padding = 24;
  check(plain, 64, 7);
  plain.bias = false;
  check(plain, 1, 8);
}

}  // namespace
}  // namespace packhorse::cuda
