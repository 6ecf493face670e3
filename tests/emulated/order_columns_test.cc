// Rows whose columns are put into another order: exactly, and no row beyond the count.
#include "cuda/rowwise/rowwise.h"
#include "emulated_stream.h"
#include "emulated_test.h"

namespace packhorse::cuda {
namespace {

using namespace packhorse::emulated_test;

void check(int64_t rows, int64_t columns, int64_t counted, unsigned seed) {
  emulated::set_seed(seed);
  std::mt19937 random(seed + static_cast<unsigned>(columns));
  const int64_t stride = columns + 3;  // rows of x need not be aligned
  Array<uint16_t> x(static_cast<size_t>(rows * stride));
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<uint16_t>(random() % 0x7000);
  Array<int32_t> order(static_cast<size_t>(columns));
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  std::shuffle(order.data(), order.data() + columns, random);
  Array<uint16_t> out(static_cast<size_t>(rows * columns));
  Array<int32_t> count(1);
  count[0] = static_cast<int32_t>(counted);
  launch_order_columns({x.data(), DType::kFloat16, rows, columns, stride}, order.data(),
                       {out.data(), DType::kFloat16, rows, columns},
                       counted < rows ? count.data() : nullptr, emulated_stream());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      const auto from = static_cast<size_t>(r * stride + order[static_cast<size_t>(c)]);
      const uint16_t expected = r < counted ? x[from] : uint16_t{0xffff};  // as it was
      CHECK(out[static_cast<size_t>(r * columns + c)] == expected);
    }
  }
}

}  // namespace

TEST(order_columns) {
  for (unsigned seed = 0; seed < 3; ++seed) {
    check(1, 8, 1, seed);
    check(4, 64, 4, seed);
    check(5, 1032, 5, seed);  // more than the columns of a block
    check(9, 1160, 6, seed);
    check(7, 2048, 0, seed);
  }
}

}  // namespace packhorse::cuda
