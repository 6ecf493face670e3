// Tests norm, embed, pool and cast of the CPU backend.
#include "cpu_test.h"

namespace packhorse::cpu_test {
namespace {

TEST(cpu_norm_matches_float64) {
  for (DType dtype : dtypes()) {
    const auto ops = make(2);
    for (NormKind kind : {NormKind::kLayer, NormKind::kRms}) {
      for (int64_t columns : {1, 7, 16, 76, 384, 1000}) {
        for (bool with_residual : {false, true}) {
          const Norm norm(columns, kind);
          Matrix x = Matrix::random(70, columns, dtype, 71);
          // With a large mean, sums of squares would lose the variance.
          std::vector<float> shifted = x.values();
          for (float& value : shifted) value += 30.0f;
          x.set(shifted);
          Matrix residual = Matrix::random(70, columns, dtype, 72);
          const std::vector<float> values = x.values();
          std::vector<double> expected(values.begin(), values.end());
          if (with_residual) add(expected, residual.values());
          norm.apply(expected);
          NormArgs args;
          args.x = x.view();
          if (with_residual) args.residual = residual.view();
          args.norm = norm.view;
          args.out = x.view();
          ops->norm(args);
          CHECK(close(x, expected, 3.0));
        }
      }
    }
  }
}

TEST(cpu_embed_matches_float64) {
  const int64_t columns = 100, vocabulary = 50;
  const std::vector<int32_t> cu_seqlens = {0, 0, 3, 3, 50, 51, 51};
  std::vector<int32_t> ids(51), types(51), positions(51);
  for (int32_t i = 0; i < 51; ++i) {
    ids[size_t(i)] = i * 7 % 50;
    types[size_t(i)] = i % 2;
    positions[size_t(i)] = i * 3 % 60;
  }
  for (DType dtype : dtypes()) {
    const auto ops = make(2);
    Matrix word = Matrix::random(vocabulary, columns, dtype, 81);
    Matrix position = Matrix::random(62, columns, dtype, 82);
    Matrix type = Matrix::random(2, columns, dtype, 83);
    const Norm norm(columns);
    for (int option = 0; option < 4; ++option) {
      Matrix out(51, columns, dtype);
      EmbedArgs args;
      args.ids = ids.data();
      args.word = word.view();
      if (option >= 1) args.position = position.view();
      if (option >= 2) args.type = type.view();
      if (option >= 2) args.position_ids = positions.data();
      if (option == 3) args.type_ids = types.data();
      if (option != 2) args.norm = norm.view;
      args.position_offset = 2;
      args.batch = batch_of(cu_seqlens);
      args.out = out.view();
      ops->embed(args);
      std::vector<double> expected;
      for (size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
        for (int32_t i = cu_seqlens[s]; i < cu_seqlens[s + 1]; ++i) {
          const int64_t at = 2 + (option >= 2 ? positions[size_t(i)] : i - cu_seqlens[s]);
          const std::vector<float> w = columns_of(word, ids[size_t(i)], 1, 0, columns);
          std::vector<double> row(w.begin(), w.end());
          if (option >= 1) add(row, columns_of(position, at, 1, 0, columns));
          if (option >= 2) {
            add(row, columns_of(type, option == 3 ? types[size_t(i)] : 0, 1, 0, columns));
          }
          expected.insert(expected.end(), row.begin(), row.end());
        }
      }
      if (option != 2) norm.apply(expected);
      CHECK(close(out, expected));
    }
  }
}

TEST(cpu_pool_matches_float64) {
  const std::vector<int32_t> lengths = {1, 0, 9, 200};
  const std::vector<int32_t> cu_seqlens = prefix_sums(lengths);
  const int64_t columns = 70;
  for (DType dtype : dtypes()) {
    for (DType out_dtype : {dtype, DType::kFloat32}) {
      const auto ops = make(2);
      Matrix x = Matrix::random(cu_seqlens.back(), columns, dtype, 95);
      const std::vector<float> values = x.values();
      for (Pooling pooling :
           {Pooling::kCls, Pooling::kMean, Pooling::kMax, Pooling::kLast, Pooling::kMeanSqrt}) {
        for (bool normalize : {false, true}) {
          std::vector<double> expected(lengths.size() * size_t(columns), 0.0);
          for (size_t s = 0; s < lengths.size(); ++s) {
            double squares = 0;
            double* row = &expected[s * size_t(columns)];
            for (int64_t c = 0; c < columns; ++c) {
              const auto at = [&](int32_t i) {
                return double(values[size_t((cu_seqlens[s] + i) * columns + c)]);
              };
              const int32_t n = lengths[s];
              if (n == 0) continue;
              double sum = 0, greatest = at(0);
              for (int32_t i = 0; i < n; ++i) {
                sum += at(i);
                greatest = std::max(greatest, at(i));
              }
              row[c] = pooling == Pooling::kCls    ? at(0)
                       : pooling == Pooling::kLast ? at(n - 1)
                       : pooling == Pooling::kMax  ? greatest
                       : pooling == Pooling::kMean ? sum / n
                                                   : sum / std::sqrt(double(n));
              squares += row[c] * row[c];
            }
            if (normalize && squares > 0) {
              for (int64_t c = 0; c < columns; ++c) row[c] /= std::sqrt(squares);
            }
          }
          Matrix out = Matrix::random(int64_t(lengths.size()), columns, out_dtype, 96);
          ops->pool({x.view(), batch_of(cu_seqlens), pooling, normalize, out.view()});
          CHECK(close(out, expected));
        }
      }
    }
  }
}

TEST(cpu_cast_rounds_to_nearest_even) {
  const auto ops = make(2);
  Matrix from = Matrix::random(40, 77, DType::kFloat32, 97);
  std::vector<float> values = from.values();
  values[0] = kNaN;
  values[1] = kInf;
  values[2] = 1.00390625f;  // halfway between two bfloat16
  values[3] = 1.01171875f;
  values[4] = -0.0f;
  values[5] = 3.4e38f;  // rounds to infinity
  from.set(values);
  Matrix to(40, 77, DType::kBFloat16);
  ops->cast({from.view(), to.view()});
  Matrix expected(40, 77, DType::kBFloat16);
  expected.set(values);
  CHECK(to.same_rows(0, expected, 0, 40));
  Matrix back(40, 77, DType::kFloat32);
  ops->cast({to.view(), back.view()});
  CHECK(std::isnan(back.values()[0]) && back.values()[1] == kInf && back.values()[5] == kInf);
  CHECK(back.values()[2] == 1.0f && back.values()[3] == 1.015625f);
}

TEST(cpu_cast_gathers_rows) {
  const auto ops = make(2);
  for (DType dtype : dtypes()) {
    Matrix x = Matrix::random(50, 24, dtype, 98);
    const std::vector<int32_t> rows = {0, 3, 3, 49, 7};
    const int32_t count = 4;
    Matrix out = Matrix::random(5, 24, dtype, 99);
    ops->cast({.x = x.view(), .out = out.view(), .rows = rows.data(), .row_count = &count});
    for (int64_t i = 0; i < count; ++i) CHECK(out.same_rows(i, x, rows[size_t(i)], 1));
    for (float value : columns_of(out, count, 1, 0, 24)) CHECK(value == 0);
    // Gathers in place: rows from the count on become zeros.
    const Matrix before = x;
    ops->cast({.x = x.view(), .out = x.view(), .row_count = &count});
    CHECK(x.same_rows(0, before, 0, count));
    for (float value : columns_of(x, count, 46, 0, 24)) CHECK(value == 0);
    Matrix narrow(5, 20, dtype);
    CHECK_THROWS_WITH(ops->cast({.x = x.view(), .out = narrow.view(), .rows = rows.data()}),
                      "cast: out is");
  }
}

TEST(cpu_cast_clears_rows_of_empty_sequences) {
  const auto ops = make(2);
  const std::vector<int32_t> cu_seqlens = {0, 0, 3, 3, 3, 5};
  Matrix out = Matrix::random(5, 33, DType::kFloat32, 97);
  const Matrix before = out;
  ops->cast({.x = out.view(), .out = out.view(), .cu_seqlens = cu_seqlens.data()});
  for (int64_t b : {1, 4}) CHECK(out.same_rows(b, before, b, 1));
  for (int64_t b : {0, 2, 3}) {
    for (float value : columns_of(out, b, 1, 0, 33)) CHECK(value == 0);
  }
}

}  // namespace
}  // namespace packhorse::cpu_test
