// Rows of bytes: exactly those of the CPU's arithmetic, whatever the width.
#include "cuda/rowwise/rowwise.h"
#include "emulated_stream.h"
#include "emulated_test.h"

namespace packhorse::cuda {
namespace {

using namespace packhorse::emulated_test;

struct Bytes {
  std::vector<uint8_t> values;
  float scale, offset;
};

/// One row by the definition, in float32 as int8_kernels.inc computes it.
Bytes quantized(const std::vector<float>& row) {
  float low = row[0];
  float high = row[0];
  bool finite = true;
  for (const float x : row) {
    low = std::min(low, x);
    high = std::max(high, x);
    finite = finite && std::isfinite(x);
  }
  Bytes result{std::vector<uint8_t>(row.size()), 0, low};
  if (!finite || !std::isfinite(high - low)) return {result.values, NAN, NAN};
  const float range = high - low;
  if (!(range > 1e-30f)) return result;
  result.scale = range / 255.0f;
  for (size_t i = 0; i < row.size(); ++i) {
    const double place = static_cast<double>(row[i] - low) * static_cast<double>(255.0f / range);
    result.values[i] = static_cast<uint8_t>(std::nearbyint(place));
  }
  return result;
}

template <class T>
void check(int64_t rows, int64_t columns, int64_t counted, unsigned seed) {
  emulated::set_seed(seed);
  std::mt19937 random(seed + static_cast<unsigned>(columns));
  const int64_t stride = columns + 8;
  Array<T> x(static_cast<size_t>(rows * stride));
  fill_normal(x, random, 2);
  const auto at = [&](int64_t row, int64_t column) -> T& {
    return x[static_cast<size_t>(row * stride + column)];
  };
  for (int64_t c = 0; c < columns; ++c) {
    if (rows > 1) at(1, c) = rounded<T>(0.25);   // equal elements
    if (rows > 2) at(2, c) = rounded<T>(c % 2);  // the ends of the range alone
    if (rows > 3) at(3, c) = rounded<T>(-1.0 / 64 * static_cast<double>(c % 64));
  }
  if (rows > 4) at(4, columns - 1) = rounded<T>(NAN);
  if (rows > 5) at(5, 0) = rounded<T>(INFINITY);
  if (rows > 6) at(6, columns / 2) = rounded<T>(-INFINITY);
  const int64_t padded = padded_int8(columns);
  Array<uint8_t> values(static_cast<size_t>(rows * padded));
  Array<float> scales(static_cast<size_t>(rows)), offsets(static_cast<size_t>(rows));
  Array<int32_t> count(1);
  count[0] = static_cast<int32_t>(counted);
  launch_quantize_rows({x.data(), kDType<T>, rows, columns, stride},
                       {values.data(), scales.data(), offsets.data()},
                       counted < rows ? count.data() : nullptr, emulated_stream());
  for (int64_t r = 0; r < rows; ++r) {
    const auto row = static_cast<size_t>(r);
    if (r >= counted) {
      CHECK(std::isnan(scales[row]) && values[row * static_cast<size_t>(padded)] == 0xff);
      continue;
    }
    std::vector<float> elements;
    for (int64_t c = 0; c < columns; ++c)
      elements.push_back(static_cast<float>(to_double(at(r, c))));
    const Bytes expected = quantized(elements);
    const auto same = [](float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); };
    CHECK(same(scales[row], expected.scale) && same(offsets[row], expected.offset));
    for (int64_t c = 0; c < padded; ++c) {
      const uint8_t found = values[static_cast<size_t>(r * padded + c)];
      if (c >= columns) CHECK(found == 0);
      if (c < columns && !std::isnan(expected.scale)) {
        CHECK(found == expected.values[static_cast<size_t>(c)]);
      }
    }
  }
}

TEST(quantize_rows_of_every_width) {
  for (const int64_t columns :
       {8, 16, 24, 248, 256, 264, 768, 1016, 1024, 1032, 3072, 8192, 8200}) {
    check<__half>(9, columns, 9, 0);
    check<__nv_bfloat16>(7, columns, 7, 1);
  }
  check<__half>(2, kMostInt8Columns, 2, 2);
}

TEST(quantize_rows_up_to_the_count) {
  for (unsigned seed = 0; seed < 9; ++seed) {
    for (const int64_t columns : {24, 768, 1536}) {
      check<__half>(11, columns, 6, seed);
      check<__half>(5, columns, 0, seed);
      check<__half>(1, columns, 1, seed);
    }
  }
}

}  // namespace
}  // namespace packhorse::cuda
