// Tests what the CPU backend promises besides numbers: memory, errors and fork.
#include <malloc.h>

#include <cstdlib>
#include <string>

#include "cpu_test.h"
#include "forked.h"

namespace packhorse::cpu_test {
namespace {

TEST(cpu_empty_batch_is_legal) {
  const auto ops = make(2);
  const std::vector<int32_t> none = {0};
  FeedForwardOp op(2, 32, 64, DType::kFloat32);
  CHECK(op.run(Matrix(0, 32, DType::kFloat32)).rows == 0);
  AttentionOp attention;
  attention.ops = make(2);
  CHECK(attention.run(Matrix(0, 384, DType::kFloat32), none).rows == 0);
  CHECK(attention.run(Matrix(0, 384, DType::kFloat32), {0, 0, 0}).rows == 0);
}

TEST(cpu_memory_does_not_grow_with_shapes) {
  for (DType dtype : dense_dtypes()) {
    FeedForwardOp feed_forward(2, 64, 192, dtype);
    AttentionOp attention;
    attention.ops = make(2);
    attention.heads = attention.kv_heads = 1;
    attention.head_dim = 16;
    const auto run = [&](int64_t rows) {
      const int32_t half = static_cast<int32_t>(rows / 2);
      feed_forward.run(Matrix(rows, 64, dtype));
      attention.run(Matrix(rows, 48, dtype), {0, half, static_cast<int32_t>(rows)});
    };
    for (int64_t rows = 1; rows < 200; ++rows) run(rows);
    const size_t before = mallinfo2().uordblks;
    if (before == 0) continue;  // A sanitizer's allocator does not count.
    for (int64_t rows = 1; rows < 2200; rows += 3) run(rows);
    // Threads free some small blocks of other threads late, because their caches keep a few.
    CHECK(mallinfo2().uordblks < before + 16384);
  }
}

TEST(cpu_refuses_dtypes_with_a_reason) {
  const auto ops = make(1);
  CHECK_THROWS_AS(RuntimeError, ops.packer->format(DType::kFloat8), "use float32");
  CHECK_THROWS_AS(RuntimeError, ops.packer->format(DType::kInt32), "int32 is not supported");
  Matrix x(3, 16, DType::kFloat16);
  CHECK_THROWS_AS(RuntimeError, ops->activate({.x = x.view(), .out = x.view()}),
                  "rows of float16 are not supported on the CPU");
  for (DType dtype : {DType::kInt8, DType::kBFloat16, DType::kFloat16}) ops.packer->format(dtype);
  CHECK(ops.packer->format(DType::kFloat16).compute == DType::kFloat32);
}

TEST(cpu_allocate_is_aligned_and_names_what_lacks) {
  const auto ops = make(1);
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{5000}, size_t{5} << 20}) {
    const auto memory = ops.device->allocate(bytes);
    CHECK(memory->bytes() == bytes);
    CHECK(reinterpret_cast<uintptr_t>(memory->data()) % 256 == 0);
  }
  CHECK_THROWS_AS(OutOfMemory, ops.device->allocate(SIZE_MAX - 5), std::to_string(SIZE_MAX - 5));
}

TEST(cpu_copies_rows_of_places) {
  // Places of 8 rows of 4 KB, of which each copy takes the beginnings: a few, and more than one
  // thread copies.
  constexpr size_t kStride = 4096, kRows = 8, kPlace = kStride * kRows;
  for (int threads : {1, 3}) {
    const auto ops = make(threads);
    for (size_t places : {size_t{2}, size_t{4}, size_t{40}}) {
      for (size_t bytes : {size_t{0}, size_t{16}, size_t{1008}, kStride}) {
        std::vector<char> memory(places * kPlace);
        for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<char>(i * 7 + i / 4096);
        std::vector<char> expected = memory;
        std::vector<DeviceCopy> copies;
        for (size_t place = 0; place + 1 < places; place += 2) {
          const size_t from = place * kPlace, to = from + kPlace;
          copies.push_back({.to = memory.data() + to,
                            .from = memory.data() + from,
                            .bytes = bytes,
                            .stride = kStride,
                            .rows = kRows});
          for (size_t row = 0; row < kRows; ++row) {
            for (size_t i = 0; i < bytes; ++i) {
              expected[to + row * kStride + i] = expected[from + row * kStride + i];
            }
          }
        }
        ops.device->copy(copies);
        CHECK(memory == expected);
      }
    }
  }
}

TEST(cpu_use_after_fork_is_an_error_not_a_hang) {
  // QEMU's emulation of a process (7.2) fails by itself where the child of one that has threads
  // starts threads.
  if (std::getenv("PACKHORSE_UNDER_QEMU") != nullptr) return;
  FeedForwardOp op(3, 32, 64, DType::kFloat32);
  const Matrix x = Matrix::random(100, 32, DType::kFloat32, 98);
  const Matrix before = op.run(x);
  test::check_forked([&] {
    int code = 1;
    try {
      op.run(x);
    } catch (const RuntimeError& error) {
      code = std::string(error.what()).find("fork") == std::string::npos ? 2 : 0;
    }
    {
      const CpuBackend gone = std::move(op.ops);
    }  // must not wait for threads that do not exist here
    // A new backend works.
    if (code == 0 && !FeedForwardOp(3, 32, 64, DType::kFloat32).run(x).same_rows(0, before, 0, 100))
      code = 3;
    return code;
  });
  CHECK(op.run(x).same_rows(0, before, 0, 100));
}

}  // namespace
}  // namespace packhorse::cpu_test
