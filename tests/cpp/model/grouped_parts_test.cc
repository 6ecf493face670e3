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
