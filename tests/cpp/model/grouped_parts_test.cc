// Tests what is read of layers whose weights are quantised in groups.
#include "model/loading/grouped_parts.h"

#include <cstring>

#include "model/loading/layer_packer.h"
#include "packhorse/error.h"
#include "test.h"

namespace packhorse {
namespace {

TEST(input_orders_name_every_feature_once) {
  // Files need not have them at a multiple of their size.
  std::vector<char> bytes(1 + 4 * sizeof(int32_t));
  const auto put = [&](const std::vector<int32_t>& order) {
    std::memcpy(bytes.data() + 1, order.data(), order.size() * sizeof(int32_t));
  };
  const auto source = borrow_tensors({{"order", TensorView(bytes.data() + 1, DType::kInt32, 4)},
                                      {"floats", TensorView(bytes.data(), DType::kFloat32, 4)}});
  const TensorReader reader(*source);
  put({2, 0, 3, 1});
  CHECK(read_input_order(reader, "order", 4) == (std::vector<int32_t>{2, 0, 3, 1}));
  CHECK_THROWS_WITH(read_input_order(reader, "order", 5), "is int32[4], expected int32[5]");
  CHECK_THROWS_WITH(read_input_order(reader, "floats", 4), "is float32[4], expected int32[4]");
  CHECK_THROWS_WITH(read_input_order(reader, "none", 4), "is missing, expected int32[4]");
  put({2, 0, 2, 1});
  CHECK_THROWS_WITH(read_input_order(reader, "order", 4), "names feature 2 twice");
  for (const int32_t wrong : {-1, 4}) {
    put({2, 0, wrong, 1});
    CHECK_THROWS_WITH(read_input_order(reader, "order", 4), "expected each of 4 features once");
  }
}

// Rows of Q4_0 in an order of their own: as floats, and as they are in groups.
TEST(blocks_are_read_in_the_order_of_their_rows) {
  constexpr int64_t kRows = 4;
  std::vector<uint8_t> bytes(kRows * 2 * 18);
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t block = 0; block < 2; ++block) {
      uint8_t* at = bytes.data() + (2 * row + block) * 18;
      at[1] = 0x3c;                                            // the scale 1
      std::fill_n(at + 2, 16, static_cast<uint8_t>(row + 9));  // q of 16 values, 0 of the others
    }
  }
  const TensorBlocks blocks = {bytes.data(), BlockKind::kQ4_0, 2, {kRows, 64}, {2, 0, 3, 1}};
  const auto source = borrow_tensors({}, {{"a", blocks}});
  const TensorReader reader(*source);
  std::vector<float> values(2 * 64);
  reader.read_rows("a", reader.require("a", kRows, 64), 1, 2, values.data());
  for (int i = 0; i < 64; ++i) {
    CHECK(values[size_t(i)] == (i % 32 < 16 ? 1 : -8));       // row 0 of the data
    CHECK(values[size_t(64 + i)] == (i % 32 < 16 ? 4 : -8));  // row 3
  }
  const GroupedTensor grouped(reader, "a", kRows, 64, {4, 32, false});
  grouped.decode_row(0, values.data());
  CHECK(values[0] == 3 && values[16] == -8 && values[32] == 3);
  CHECK_THROWS_WITH(GroupedTensor(reader, "a", kRows, 64, {8, 32, false}), "values of 8 bits");
  CHECK_THROWS_WITH(reader.require("a", kRows, 32), "'a' is float32[4, 64], expected");
  bytes[18 * 4 + 1] = 0x7c;  // the scale Inf, in row 2 of the data
  CHECK_THROWS_WITH(grouped.decode_row(0, values.data()), "does not fit float16; load the model");
  CHECK_THROWS_WITH(reader.read_rows("a", reader.require("a", kRows, 64), 0, 1, values.data()),
                    "'a' holds inf at element 0, expected finite");
}

// Two layers of 20 input features in one, which has 24: in memory the columns that fill it up stay
// where they are.
TEST(layers_of_one_product_have_one_input_order) {
  std::vector<uint8_t> rows(2 * (20 + 2 * 2));  // values and scales, all zero
  std::vector<int32_t> first(20), second(20);
  for (int i = 0; i < 20; ++i) first[size_t(i)] = second[size_t(i)] = (i + 7) % 20;
  const auto source =
      borrow_tensors({{"a.weight", TensorView(rows.data(), DType::kUInt8, 2, 24)},
                      {"b.weight", TensorView(rows.data(), DType::kUInt8, 2, 24)},
                      {"a.input_order", TensorView(first.data(), DType::kInt32, 20)},
                      {"b.input_order", TensorView(second.data(), DType::kInt32, 20)}});
  const TensorReader reader(*source);
  Backend backend = make_backend({DeviceType::kCpu, 0}, {.threads = 1});
  Precision precision = precision_of(DType::kFloat32, false, *backend.packer);
  precision.groups = {{"a", {8, 16, false, true}}, {"b", {8, 16, false, true}}};
  const std::vector<Part> parts = {{"a", {2, 2, 2, 0}, false}, {"b", {2, 2, 2, 2}, false}};
  const auto linear = [&](LayerPacker packer) {
    return packer.linear({"ab", parts, 4, whole(20), 24}, precision.layers);
  };
  Arena counting;
  CHECK(linear({{}, precision, backend, counting, nullptr}).groups.ordered);
  const auto memory = backend.device->allocate(counting.plan().bytes);
  const auto load = [&] {
    Arena arena(memory->data(), counting.plan());
    return linear({{}, precision, backend, arena, &reader});
  };
  const LinearWeight weight = load();
  for (int i = 0; i < 24; ++i) CHECK(weight.input_order[i] == (i < 20 ? (i + 7) % 20 : i));
  std::swap(second[3], second[4]);
  CHECK_THROWS_WITH(load(), "'a.input_order' and 'b.input_order' differ, expected one order");
}

}  // namespace
}  // namespace packhorse
