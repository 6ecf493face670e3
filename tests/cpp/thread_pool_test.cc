#include "cpu/thread_pool.h"

#include <atomic>
#include <vector>

#include "packhorse/error.h"
#include "test.h"

namespace packhorse::cpu_test {
namespace {

TEST(thread_pool_calls_every_index_once) {
  for (int threads : {1, 2, 5}) {
    cpu::ThreadPool pool(threads, [] {});
    CHECK(pool.threads() == threads);
    for (int round = 0; round < 300; ++round) {
      std::vector<std::atomic<int>> calls(static_cast<size_t>(round));
      pool.parallel_for(round, [&](int64_t index, int worker) {
        calls[size_t(index)] += worker >= 0 && worker < threads ? 1 : 100;
      });
      for (const auto& count : calls) CHECK(count == 1);
    }
  }
  CHECK(cpu::ThreadPool(0, [] {}).threads() == cpu::available_cores());
  CHECK_THROWS_WITH(cpu::ThreadPool(-1, [] {}), "threads is -1");
}

TEST(thread_pool_carries_exceptions_and_goes_on) {
  cpu::ThreadPool pool(3, [] {});
  for (int round = 0; round < 50; ++round) {
    CHECK_THROWS_AS(RuntimeError,
                    pool.parallel_for(100,
                                      [&](int64_t index, int) {
                                        if (index == 40) throw RuntimeError("index 40");
                                      }),
                    "index 40");
    std::atomic<int> calls = 0;
    pool.parallel_for(100, [&](int64_t, int) { ++calls; });
    CHECK(calls == 100);
  }
}

}  // namespace
}  // namespace packhorse::cpu_test
