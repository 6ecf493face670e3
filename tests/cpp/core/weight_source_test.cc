#include "packhorse/weight_source.h"

#include "test.h"

namespace packhorse {
namespace {

TEST(borrowed_and_renamed_tensors) {
  float data[6] = {1, 2, 3, 4, 5, 6};
  auto borrowed = borrow_tensors({{"a", TensorView(data, DType::kFloat32, 2, 3)},
                                  {"b", TensorView(data, DType::kFloat32, 6)}});
  CHECK(borrowed->names() == (std::vector<std::string>{"a", "b"}));
  CHECK(borrowed->find("a").describe() == "float32[2, 3]");
  CHECK(!borrowed->find("c"));
  borrowed->release(data, sizeof(data));
  CHECK(data[5] == 6);

  const auto renamed = rename_tensors(std::move(borrowed), {{"ours", "a"}, {"lost", "z"}});
  CHECK(renamed->names() == (std::vector<std::string>{"lost", "ours"}));
  CHECK(renamed->find("ours").as<float>() == data);
  CHECK(!renamed->find("a"));
  CHECK(!renamed->find("lost"));
  CHECK(renamed->identity().empty());
}

}  // namespace
}  // namespace packhorse
