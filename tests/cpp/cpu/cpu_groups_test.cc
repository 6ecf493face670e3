// Tests dense layers whose weights are quantised in groups.
#include "cpu/common/groups_layout.h"
#include "cpu/gemm/gemm_groupwise.h"
#include "cpu_test.h"

namespace packhorse::cpu_test {
namespace {

const WeightGroups kForms[] = {
    {4, 32, false}, {4, 32, true},  {4, 64, false},  {4, 128, true}, {8, 16, false},
    {8, 16, true},  {8, 32, false}, {8, 128, false}, {8, 64, true},  {10, 64, false, false, true}};

uint16_t half_of(float value) {
  uint16_t bits = 0;
  from_float32(&value, DType::kFloat16, &bits, 1);
  return bits;
}

float float_of(uint16_t bits) {
  float value = 0;
  to_float32(&bits, DType::kFloat16, &value, 1);
  return value;
}

// Weights of floats as they are in 10 bits: integers up to 511 for each 64, times the smallest
// bfloat16 that is enough.
std::vector<double> in_ten_bits(const std::vector<float>& floats, int64_t in) {
  std::vector<double> rounded(floats.begin(), floats.end());
  for (auto row = rounded.begin(); row != rounded.end(); row += in) {
    for (int64_t k = 0; k < in; k += 64) {
      const auto end = row + std::min(k + 64, in);
      float most = 0;
      for (auto at = row + k; at != end; ++at) most = std::max(most, std::abs(float(*at)));
      most /= 511;
      uint16_t bits = 0;
      float scale = 0;
      from_float32(&most, DType::kBFloat16, &bits, 1);
      to_float32(&bits, DType::kBFloat16, &scale, 1);
      if (scale < most) ++bits;
      to_float32(&bits, DType::kBFloat16, &scale, 1);
      for (auto at = row + k; at != end; ++at) {
        *at = scale > 0 ? double(std::nearbyint(float(*at) / scale)) * scale : 0.0;
      }
    }
  }
  return rounded;
}

// A layer of random values, packed, with the floats that they stand for.
struct GroupedDense {
  GroupedDense(LinearPacker& packer, int64_t in, int64_t out, const WeightGroups& groups,
               DType dtype, unsigned seed)
      : in(in), out(out), bias(Matrix::random(1, out, DType::kFloat32, seed).values()) {
    if (groups.wide_inputs) {
      pack_floats(packer, groups, dtype, seed);
      return;
    }
    std::mt19937 generator(seed);
    const int64_t count = groups.count(in);
    std::vector<uint8_t> values(static_cast<size_t>(in * out));
    std::vector<uint16_t> scales(static_cast<size_t>(count * out)), minima(scales.size());
    for (uint8_t& value : values) value = static_cast<uint8_t>(generator() % (1u << groups.bits));
    for (size_t i = 0; i < scales.size(); ++i) {
      const float scale = static_cast<float>(generator() % 1000 + 1) / 1000.0f;
      const float range = std::sqrt(static_cast<float>(in)) * static_cast<float>(groups.zero());
      scales[i] = half_of(scale / range);
      minima[i] = half_of(-scale * static_cast<float>(generator() % 3) / std::sqrt(float(in)));
    }
    for (int64_t n = 0; n < out; ++n) {
      for (int64_t k = 0; k < in; ++k) {
        const auto at = static_cast<size_t>(n * count + k / groups.size);
        const double q = values[static_cast<size_t>(n * in + k)];
        weight.push_back(groups.minima ? double(float_of(scales[at])) * q + float_of(minima[at])
                                       : double(float_of(scales[at])) * (q - groups.zero()));
      }
    }
    const LinearFormat format = packer.grouped_format(groups, dtype);
    packed.resize(packer.bytes(in, out, format));
    packer.pack_groups({values.data(), scales.data(), groups.minima ? minima.data() : nullptr}, in,
                       out, format, packed.data());
    view = {in, out, format.weight, packed.data(), bias.data(), groups};
  }

  // Weights of 10 bits are made of floats alone.
  void pack_floats(LinearPacker& packer, const WeightGroups& groups, DType dtype, unsigned seed) {
    const std::vector<float> floats = Matrix::random(out, in, DType::kFloat32, seed).values();
    weight = in_ten_bits(floats, in);
    const LinearFormat format = packer.grouped_format(groups, dtype);
    packed.resize(packer.bytes(in, out, format));
    packer.pack(floats.data(), in, out, format, packed.data());
    view = {in, out, format.weight, packed.data(), bias.data(), groups};
  }

  // The product with x as it is quantised in blocks, in float64.
  std::vector<double> apply(const std::vector<float>& x, bool quantized = true) const {
    const auto rows = static_cast<int64_t>(x.size()) / in;
    const int64_t block = view.groups.wide_inputs ? 64 : 32;
    const float levels = view.groups.wide_inputs ? 32767.0f : 127.0f;
    std::vector<double> rounded(x.begin(), x.end());
    for (int64_t i = 0; i < rows && quantized; ++i) {
      for (int64_t k = 0; k < in; k += block) {
        const int64_t end = std::min(k + block, in);
        float most = 0;
        for (int64_t c = k; c < end; ++c) most = std::max(most, std::abs(x[size_t(i * in + c)]));
        const float inverse = most > 0 ? levels / most : 0.0f;
        for (int64_t c = k; c < end; ++c) {
          rounded[size_t(i * in + c)] =
              double(most / levels) * std::nearbyint(x[size_t(i * in + c)] * inverse);
        }
      }
    }
    return dense_of(rounded, weight, bias, Activation::kNone);
  }

  int64_t in, out;
  std::vector<float> bias;
  std::vector<double> weight;
  std::vector<std::byte> packed;
  LinearWeight view;
};

Matrix run(const CpuBackend& ops, const LinearWeight& weight, Matrix x,
           Activation activation = Activation::kNone) {
  Matrix out(x.rows, weight.out_features, x.dtype);
  LinearArgs args;
  args.x = x.view();
  args.weight = weight;
  args.activation = activation;
  args.out = out.view();
  linear(ops, args);
  return out;
}

TEST(cpu_groups_match_float64) {
  const auto ops = make(2);
  for (DType dtype : dtypes()) {
    for (const WeightGroups& groups : kForms) {
      for (auto [rows, in, out] : {std::tuple{0, 64, 32},
                                   {1, 96, 52},
                                   {7, 40, 70},
                                   {16, 129, 64},
                                   {64, 32, 65},
                                   {261, 70, 130},
                                   {33, 1, 193}}) {
        const GroupedDense dense(*ops.packer, in, out, groups, dtype, 11);
        Matrix x = Matrix::random(rows, in, dtype, 12);
        CHECK(close(run(ops, dense.view, x), dense.apply(x.values())));
      }
    }
  }
}

// Bounds the error that the blocks of x cost.
TEST(cpu_groups_are_near_products_of_floats) {
  const auto ops = make(1);
  for (const WeightGroups& groups : kForms) {
    const GroupedDense dense(*ops.packer, 1024, 64, groups, DType::kFloat32, 5);
    Matrix x = Matrix::random(20, 1024, DType::kFloat32, 6);
    const std::vector<float> found = run(ops, dense.view, x).values();
    const std::vector<double> expected = dense.apply(x.values(), false);
    double error = 0, size = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      error += std::pow(found[i] - expected[i], 2);
      size += std::pow(expected[i], 2);
    }
    CHECK(std::sqrt(error / size) < (groups.wide_inputs ? 5e-5 : 0.01));
  }
}

// Groups that a language model in int8 makes of floats, rows of zeros and tiny ones among them.
TEST(cpu_groups_of_a_language_model) {
  const auto ops = make(2);
  const LinearFormat format = ops.packer->lm_format(DType::kInt8);
  CHECK(format.weight == DType::kUInt8 && format.compute == DType::kFloat32);
  CHECK(ops.packer->lm_format(DType::kFloat32).weight == DType::kFloat32);
  CHECK((format.groups == WeightGroups{10, 64, false, false, true}));
  for (auto [in, out] : {std::pair{576, 130}, {70, 65}, {1, 3}}) {
    Matrix weight = Matrix::random(out, in, DType::kFloat32, 21);
    weight.fill_row(0, 0.0f);
    weight.fill_row(1, 1e-30f);
    weight.fill_row(out - 1, 3.0f);
    const std::vector<float> floats = weight.values();
    const std::vector<double> expected = in_ten_bits(floats, in);
    std::vector<std::byte> packed(ops.packer->bytes(in, out, format));
    ops.packer->pack(floats.data(), in, out, format, packed.data());
    const std::vector<float> bias(static_cast<size_t>(out));
    const LinearWeight view = {in, out, format.weight, packed.data(), bias.data(), format.groups};
    for (int64_t rows : {1, 8, 70}) {
      Matrix x = Matrix::random(rows, in, DType::kFloat32, 22);
      const Matrix found = run(ops, view, x);
      CHECK(close(found, dense_of(x.values(), expected, bias, Activation::kNone), 100.0));
      CHECK(close(found, dense_of(x.values(), floats, bias, Activation::kNone), 1500.0));
    }
  }
}

TEST(cpu_groups_finish_rows) {
  const auto ops = make(2);
  for (DType dtype : dtypes()) {
    const GroupedDense dense(*ops.packer, 96, 70, {4, 32, true}, dtype, 3);
    for (int64_t rows : {3, 100}) {
      Matrix x = Matrix::random(rows, 96, dtype, 4);
      std::vector<double> gelu = dense.apply(x.values());
      for (double& value : gelu) value = activate(Activation::kGelu, value);
      CHECK(close(run(ops, dense.view, x, Activation::kGelu), gelu));

      const Norm norm(70);
      Matrix result = Matrix::random(rows, 70, dtype, 5);
      std::vector<double> expected = dense.apply(x.values());
      add(expected, result.values());
      norm.apply(expected);
      LinearArgs args;
      args.x = x.view();
      args.weight = dense.view;
      args.residual = args.out = result.view();
      args.norm = norm.view;
      linear(ops, args);
      CHECK(close(result, expected));
    }
  }
}

// Both layers of a feed-forward block, in forms of their own; the gate alternates with up.
TEST(cpu_groups_feed_forward) {
  const int64_t hidden = 64, inner = 96;
  for (int threads : {1, 3}) {
    const auto ops = make(threads);
    const GroupedDense up(*ops.packer, hidden, 2 * inner, {4, 32, true}, DType::kFloat32, 3);
    const GroupedDense down(*ops.packer, inner, hidden, {8, 16, false}, DType::kFloat32, 4);
    for (int64_t rows : {1, 5, 65, 300}) {
      Matrix x = Matrix::random(rows, hidden, DType::kFloat32, 5);
      const std::vector<double> both = up.apply(x.values());
      std::vector<float> gated;
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t c = 0; c < inner; ++c) {
          const int64_t at = i * 2 * inner + c / kGateBlock * 2 * kGateBlock + c % kGateBlock;
          gated.push_back(static_cast<float>(activate(Activation::kSilu, both[size_t(at)]) *
                                             both[size_t(at + kGateBlock)]));
        }
      }
      Matrix out(rows, hidden, DType::kFloat32);
      FeedForwardArgs args;
      args.x = x.view();
      args.up = up.view;
      args.down = down.view;
      args.activation = Activation::kSilu;
      args.gated = true;
      args.out = out.view();
      feed_forward(ops, args);
      // A value in the middle that is rounded otherwise is off by 1 / 127 of its block's largest.
      CHECK(close(out, down.apply(gated), 2000.0));
    }
  }
}

// Few rows, many rows, whole and split blocks, other threads, NaN beside it: a row has its bits.
TEST(cpu_groups_bits_depend_on_the_row_alone) {
  for (DType dtype : dtypes()) {
    for (const WeightGroups& groups : kForms) {
      const auto one = make(1), three = make(3);
      const GroupedDense dense(*one.packer, 160, 200, groups, dtype, 7);
      Matrix row = Matrix::random(1, 160, dtype, 8);
      const Matrix alone = run(one, dense.view, row);
      bool same = true;
      for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 16, 17, 33, 64, 65, 130, 200, 257}) {
        Matrix x = Matrix::random(rows, 160, dtype, static_cast<unsigned>(rows));
        if (rows > 1) x.fill_row(rows - 1, rows % 2 == 0 ? kNaN : kInf);
        for (const int64_t at : {int64_t{0}, (rows - 1) / 2}) {
          Matrix mixed = x;
          mixed.copy_row(at, row, 0);
          same &= run(one, dense.view, mixed).same_rows(at, alone, 0, 1);
          const Matrix found = run(three, dense.view, mixed);
          same &= found.same_rows(at, alone, 0, 1);
          if (rows > 1) CHECK(std::isnan(found.values().back()));
        }
      }
      CHECK(same);
    }
  }
}

TEST(cpu_groups_read_and_write_strided_rows) {
  const auto ops = make(2);
  const GroupedDense dense(*ops.packer, 40, 30, {4, 32, false}, DType::kFloat32, 11);
  for (int64_t rows : {4, 100}) {
    Matrix x = Matrix::random(rows, 50, DType::kFloat32, 12);
    Matrix out(rows, 90, DType::kFloat32);
    LinearArgs args;
    args.x = x.view().column_slice(5, 40);
    args.weight = dense.view;
    args.out = out.view().column_slice(60, 30);
    linear(ops, args);
    Matrix part(rows, 30, DType::kFloat32);
    part.set(columns_of(out, 0, rows, 60, 30));
    CHECK(close(part, dense.apply(columns_of(x, 0, rows, 5, 40))));
    for (float value : columns_of(out, 0, rows, 0, 60)) CHECK(value == 0);
  }
}

// A value of 4 bits takes half a byte, and a group 2 or 4 bytes more.
TEST(cpu_groups_take_their_bytes) {
  CHECK(cpu::packed_groups_bytes(576, 960, {4, 32, false}) == 960 * (576 / 2 + 576 / 32 * 2));
  CHECK(cpu::packed_groups_bytes(576, 960, {4, 32, true}) == 960 * (576 / 2 + 576 / 32 * 4));
  CHECK(cpu::packed_groups_bytes(512, 64, {8, 128, false}) == 64 * (512 + 512 / 128 * 2));
  CHECK(cpu::packed_groups_bytes(576, 1, {10, 64, false, false, true}) == 64 * (720 + 18));
  CHECK(cpu::packed_groups_bytes(33, 1, {8, 16, false}) == 64 * (64 + 4 * 2));
}

}  // namespace
}  // namespace packhorse::cpu_test
