// The order of weights is learned and learned anew, and reading ahead of memory that is gone does
// no harm.
#include <array>
#include <memory>

#include "cpu/threads/read_ahead.h"
#include "cpu/threads/shared_pools.h"
#include "test.h"

namespace packhorse::cpu {
namespace {

TEST(cpu_read_ahead_learns_the_order_of_weights) {
  std::array<char, 4> memory = {};
  const auto weight = [&](size_t i) {
    return ReadAhead::Range{memory.data() + i, static_cast<int64_t>(i) + 1};
  };
  WeightOrder order;
  for (size_t i = 0; i < 3; ++i) CHECK(order.after(weight(i)).data == nullptr);
  for (int round = 0; round < 2; ++round) {
    for (size_t i = 0; i < 3; ++i) {
      const ReadAhead::Range next = order.after(weight(i));
      CHECK(next.data == weight((i + 1) % 3).data && next.bytes == weight((i + 1) % 3).bytes);
    }
  }
  order.after(weight(0));
  order.after(weight(3));  // instead of the one that came after it so far
  order.after(weight(1));
  CHECK(order.after(weight(0)).data == weight(3).data);
  CHECK(order.after(weight(3)).data == weight(1).data);
}

TEST(cpu_read_ahead_of_memory_that_is_gone_does_no_harm) {
  const auto pool = shared_pool(2, false);
  constexpr int64_t kBytes = 1 << 22;
  for (int round = 0; round < 50; ++round) {
    const auto memory = std::make_unique<char[]>(kBytes);
    pool->read_ahead({memory.get(), kBytes});
    std::array<int, 8> calls = {};
    pool->parallel_for(8, [&](int64_t i, int) { ++calls[static_cast<size_t>(i)]; });
    for (int times : calls) CHECK(times == 1);
  }
  pool->read_ahead({});
}

}  // namespace
}  // namespace packhorse::cpu
