// Tests linear and feed_forward of the CPU backend.
#include "cpu_test.h"

namespace packhorse::cpu_test {
namespace {

struct LinearOp {
  LinearOp(int threads, int64_t in, int64_t out, DType dtype, bool finish)
      : ops(make(threads)), dense(*ops.packer, in, out, dtype, 3), norm(out), finish(finish) {}
  Matrix run(Matrix x) {
    Matrix out(x.rows, dense.out, x.dtype);
    // Every column of the residual is the input's first column, so that it, too, depends on the row
    // only.
    Matrix residual(x.rows, dense.out, x.dtype);
    for (int64_t i = 0; i < x.rows; ++i) {
      for (int64_t j = 0; j < dense.out; ++j) {
        std::memcpy(residual.row(i) + j * int64_t(size_of(x.dtype)), x.row(i), size_of(x.dtype));
      }
    }
    LinearArgs args;
    args.x = x.view();
    args.weight = dense.view;
    args.activation = Activation::kGelu;
    if (finish) {
      args.residual = residual.view();
      args.norm = norm.view;
    }
    args.out = out.view();
    linear(ops, args);
    return out;
  }
  CpuBackend ops;
  Dense dense;
  Norm norm;
  bool finish;
};

TEST(cpu_linear_matches_float64) {
  for (DType dtype : dense_dtypes()) {
    const auto ops = make(2);
    for (auto [rows, in, out] : {std::tuple{1, 26, 52},
                                 {3, 384, 70},
                                 {64, 100, 384},
                                 {48, 3000, 65},
                                 {261, 70, 130},
                                 {65, 384, 1152},
                                 {130, 77, 199},
                                 {300, 64, 48},
                                 {70, 1, 1},
                                 {9, 512, 33},
                                 {140, 1024, 40},
                                 {20, 30, 65},
                                 {33, 50, 193}}) {
      for (int option = 0; option < 4; ++option) {
        const Dense dense(*ops.packer, in, out, dtype, 11, option != 1);
        const Norm norm(out);
        Matrix x = Matrix::random(rows, in, dtype, 12);
        Matrix result =
            Matrix::random(rows, out, dtype, 13);  // also the residual, which is updated in place
        std::vector<double> expected = dense.apply(x.values(), Activation::kNone);
        LinearArgs args;
        if (option >= 2) {
          add(expected, result.values());
          args.residual = result.view();
        }
        if (option == 3) {
          norm.apply(expected);
          args.norm = norm.view;
        }
        args.x = x.view();
        args.weight = dense.view;
        args.out = result.view();
        linear(ops, args);
        CHECK(close(result, expected));
      }
    }
  }
}

TEST(cpu_linear_reads_and_writes_strided_rows) {
  const auto ops = make(2);
  for (DType dtype : dense_dtypes()) {
    const Dense dense(*ops.packer, 40, 30, dtype, 11);
    for (int64_t rows : {40, 100}) {
      Matrix x = Matrix::random(rows, 50, dtype, 12);
      Matrix out(rows, 90, dtype);
      LinearArgs args;
      args.x = x.view().column_slice(5, 40);
      args.weight = dense.view;
      args.out = out.view().column_slice(60, 30);
      linear(ops, args);
      Matrix part(rows, 30, dtype);
      part.set(columns_of(out, 0, rows, 60, 30));
      CHECK(close(part, dense.apply(columns_of(x, 0, rows, 5, 40), Activation::kNone)));
      for (float value : columns_of(out, 0, rows, 0, 60)) CHECK(value == 0);
    }
  }
}

TEST(cpu_feed_forward_matches_float64) {
  const Activation all[] = {Activation::kNone,   Activation::kGelu, Activation::kGeluTanh,
                            Activation::kRelu,   Activation::kSilu, Activation::kTanh,
                            Activation::kSigmoid};
  for (DType dtype : dense_dtypes()) {
    for (Activation activation : all) {
      for (int threads : {1, 3}) {
        FeedForwardOp op(threads, 72, 200, dtype, activation);
        for (int64_t rows : {0, 1, 16, 63, 65, 200, 333}) {
          const Matrix x = Matrix::random(rows, 72, dtype, 21);
          const Matrix found = op.run(x);
          std::vector<double> middle = op.up.apply(x.values(), activation);
          std::vector<float> rounded(middle.begin(), middle.end());
          if (dtype == DType::kBFloat16) {
            for (float& value : rounded) value = bfloat16_to_float32(float32_to_bfloat16(value));
          }
          std::vector<double> expected = op.down.apply(rounded, Activation::kNone);
          add(expected, x.values());
          op.norm.apply(expected);
          // The norm may magnify errors, so the tolerance is larger.
          CHECK(close(found, expected, 3.0));
        }
      }
    }
  }
}

// Returns whether a row gives the same bits everywhere: alone, at every position of batches that
// need full and partial blocks, split and whole ones, with 1 and 3 threads, and among NaN and Inf.
template <class Op>
bool bits_depend_on_the_row_alone(Op& one, Op& three, int64_t columns, DType dtype) {
  const Matrix row = Matrix::random(1, columns, dtype, 31);
  const Matrix alone = one.run(row);
  bool same = true;
  for (int64_t rows : {1, 2, 15, 16, 17, 31, 33, 48, 63, 64, 65, 127, 130, 200, 257}) {
    Matrix equal(rows, columns, dtype);
    Matrix mixed = Matrix::random(rows, columns, dtype, static_cast<unsigned>(rows));
    for (int64_t i = 0; i < rows; ++i) {
      equal.copy_row(i, row, 0);
      if (i % 3 == 1) mixed.copy_row(i, row, 0);
      if (i % 6 == 2) mixed.fill_row(i, i % 4 == 0 ? kNaN : kInf);
    }
    for (Op* op : {&one, &three}) {
      const Matrix from_equal = op->run(equal);
      const Matrix from_mixed = op->run(mixed);
      for (int64_t i = 0; i < rows; ++i) {
        same &= from_equal.same_rows(i, alone, 0, 1);
        if (i % 3 == 1) same &= from_mixed.same_rows(i, alone, 0, 1);
      }
    }
  }
  return same;
}

TEST(cpu_linear_bits_depend_on_the_row_alone) {
  for (DType dtype : dense_dtypes()) {
    for (auto [in, out] :
         {std::pair{384, 384}, {100, 200}, {33, 17}, {40, 193}, {1000, 500}, {512, 96}}) {
      for (bool finish : {false, true}) {
        LinearOp one(1, in, out, dtype, finish);
        LinearOp three(3, in, out, dtype, finish);
        CHECK(bits_depend_on_the_row_alone(one, three, in, dtype));
      }
    }
  }
}

TEST(cpu_feed_forward_bits_depend_on_the_row_alone) {
  for (DType dtype : dense_dtypes()) {
    for (auto [hidden, intermediate] : {std::pair{128, 512}, {76, 300}}) {
      FeedForwardOp one(1, hidden, intermediate, dtype);
      FeedForwardOp three(3, hidden, intermediate, dtype);
      CHECK(bits_depend_on_the_row_alone(one, three, hidden, dtype));
    }
  }
}

// Returns whether run(x, dtype), whose weights are stored as `dtype`, gives the bits of run(x,
// kFloat32), whose weights are the same numbers.
template <class Run>
bool bits_are_those_of_float32(DType dtype, std::initializer_list<int64_t> counts, int64_t in,
                               const Run& run) {
  bool same = true;
  for (int64_t rows : counts) {
    Matrix x = Matrix::random(rows, in, DType::kFloat32, 41);
    const Matrix narrow = run(x, dtype), wide = run(x, DType::kFloat32);
    same &= narrow.same_rows(0, wide, 0, rows);
  }
  return same;
}

TEST(cpu_weights_of_16_bits_give_the_bits_of_float32) {
  const std::initializer_list<int64_t> rows = {0,  1,  2,  5,  6,  7,  12,  13,  14,
                                               15, 28, 29, 43, 64, 65, 128, 141, 300};
  for (DType dtype : widened_dtypes()) {
    for (int threads : {1, 3}) {
      const auto ops = make(threads);
      for (auto [in, out] : {std::pair{1, 1}, {33, 17}, {100, 200}, {577, 96}, {3000, 65}}) {
        const Dense narrow(*ops.packer, in, out, dtype, 11);
        const Dense wide(*ops.packer, narrow.weight, narrow.bias, in);
        const Norm norm(out);
        for (bool finish : {false, true}) {
          const auto run = [&](Matrix& x, DType stored) {
            Matrix result = Matrix::random(x.rows, out, DType::kFloat32, 13);
            LinearArgs args;
            args.x = x.view();
            args.weight = stored == dtype ? narrow.view : wide.view;
            args.activation = finish ? Activation::kNone : Activation::kGelu;
            if (finish) args.residual = result.view();
            if (finish) args.norm = norm.view;
            args.out = result.view();
            linear(ops, args);
            return result;
          };
          CHECK(bits_are_those_of_float32(dtype, rows, in, run));
        }
      }
    }
  }
}

TEST(cpu_feed_forward_of_16_bits_gives_the_bits_of_float32) {
  for (DType dtype : widened_dtypes()) {
    FeedForwardOp op(3, 72, 256, dtype);
    const Dense up(*op.ops.packer, op.up.weight, op.up.bias, 72);
    const Dense down(*op.ops.packer, op.down.weight, op.down.bias, 256);
    const auto run = [&](const Matrix& x, DType stored) {
      FeedForwardArgs args;
      Matrix result = x;
      args.x = args.residual = args.out = result.view();
      args.up = stored == dtype ? op.up.view : up.view;
      args.down = stored == dtype ? op.down.view : down.view;
      args.norm = op.norm.view;
      feed_forward(op.ops, args);
      return result;
    };
    CHECK(bits_are_those_of_float32(dtype, {1, 17, 64, 130, 600}, 72, run));
  }
}

// Every finite number of 16 bits comes through packing and multiplication as it is, and numbers
// between two of them are rounded to nearest, ties to even.
TEST(cpu_weights_of_16_bits_are_rounded_once) {
  for (DType dtype : widened_dtypes()) {
    const auto ops = make(1);
    std::vector<float> numbers;
    for (uint32_t bits = 0; bits < 1 << 16; ++bits) {
      const auto half = static_cast<uint16_t>(bits);
      float value = 0;
      to_float32(&half, dtype, &value, 1);
      if (!std::isfinite(value)) continue;
      for (float factor : {1.0f, 1.0f + 0x1p-12f, 1.0f - 0x1p-12f, 1.0f + 0x1p-11f, 1.0f + 0x1p-9f})
        numbers.push_back(std::clamp(value * factor, -65504.0f, 65504.0f));
    }
    const auto count = static_cast<int64_t>(numbers.size());
    const Dense dense(*ops.packer, numbers, {}, 1, dtype);
    Matrix x(1, 1, DType::kFloat32), out(1, count, DType::kFloat32);
    x.set({1.0f});
    linear(ops,
           {.x = x.view(), .weight = dense.view, .residual = {}, .norm = {}, .out = out.view()});
    std::vector<uint16_t> rounded(numbers.size());
    from_float32(numbers.data(), dtype, rounded.data(), rounded.size());
    std::vector<float> expected(numbers.size());
    to_float32(rounded.data(), dtype, expected.data(), rounded.size());
    const std::vector<float> found = out.values();
    CHECK(std::equal(found.begin(), found.end(), expected.begin()));
  }
}

TEST(cpu_rows_packed_apart_are_the_packed_weight) {
  const auto ops = make(1);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    const LinearFormat format = ops.packer->format(dtype);
    const int64_t apart = ops.packer->features_apart(format);
    for (const auto& [in, out] :
         {std::pair<int64_t, int64_t>{576, 960}, {600, 454}, {7, 70}, {33, 1}}) {
      std::vector<float> weight(static_cast<size_t>(in * out));
      std::mt19937 generator(static_cast<unsigned>(in));
      for (float& value : weight) value = std::normal_distribution<float>()(generator);
      std::vector<std::byte> whole(ops.packer->bytes(in, out, format));
      std::vector<std::byte> parts(whole.size());
      ops.packer->pack(weight.data(), in, out, format, whole.data());
      for (const int64_t step : {apart, 2 * apart}) {
        std::fill(parts.begin(), parts.end(), std::byte{0});
        for (int64_t first = 0; first < out; first += step) {
          ops.packer->pack_rows(weight.data() + first * in, first, std::min(step, out - first), in,
                                format, parts.data());
        }
        CHECK(parts == whole);
      }
    }
  }
}

}  // namespace
}  // namespace packhorse::cpu_test
