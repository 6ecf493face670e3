#include "packhorse/weight_source.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "core/temporary_file.h"
#include "packhorse/error.h"
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

TEST(borrowed_blocks_of_a_mapping_that_is_truncated) {
  constexpr size_t kBytes = 1 << 16;
  const TemporaryFile temporary(std::string(kBytes, '\0'));
  const std::string& path = temporary.path();
  const int file = open(path.c_str(), O_RDWR);
  CHECK(file >= 0);
  void* const data = mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, file, 0);
  CHECK(data != MAP_FAILED);
  const auto* bytes = static_cast<const uint8_t*>(data);
  const TensorBlocks blocks = {bytes, BlockKind::kQ8_0, 2, {4, 64}};
  {
    const auto renamed = rename_tensors(borrow_tensors({}, {{"a", blocks}}, {{data, kBytes, path}}),
                                        {{"ours", "a"}});
    CHECK(renamed->find_blocks("a") == nullptr && !renamed->find("ours"));
    CHECK(renamed->find_blocks("ours")->data == bytes);
    renamed->release(data, kBytes);
    CHECK(ftruncate(file, 4096) == 0);
    CHECK(*const_cast<const volatile uint8_t*>(bytes + kBytes - 1) == 0);
    CHECK_THROWS_AS(RuntimeError, renamed->release(data, kBytes),
                    path + ": the file was truncated while it was read");
  }
  munmap(data, kBytes);  // the mapping is still the caller's
  close(file);
}

}  // namespace
}  // namespace packhorse
