#include "cpu/threads/thread_pool.h"

#include <atomic>
#include <barrier>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "cpu/threads/affinity.h"
#include "cpu/threads/shared_pools.h"
#include "packhorse/error.h"
#include "test.h"

namespace packhorse::cpu_test {
namespace {

TEST(thread_pool_calls_every_index_once) {
  for (int threads : {1, 2, 5}) {
    cpu::ThreadPool pool(threads, std::make_shared<cpu::FairMutex>(), [](int) {});
    CHECK(pool.threads() == threads);
    for (int round = 0; round < 300; ++round) {
      std::vector<std::atomic<int>> calls(static_cast<size_t>(round));
      pool.parallel_for(round, [&](int64_t index, int worker) {
        calls[size_t(index)] += worker >= 0 && worker < threads ? 1 : 100;
      });
      for (const auto& count : calls) CHECK(count == 1);
    }
  }
  CHECK(cpu::shared_pool(0, false)->threads() == static_cast<int>(cpu::allowed_cores().size()));
  CHECK_THROWS_WITH(cpu::shared_pool(-1, false), "threads is -1");
}

TEST(thread_pool_carries_exceptions_and_goes_on) {
  cpu::ThreadPool pool(3, std::make_shared<cpu::FairMutex>(), [](int) {});
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

TEST(shared_pools_are_one_for_each_kind) {
  const auto pool = cpu::shared_pool(3, false);
  CHECK(cpu::shared_pool(3, false) == pool);
  CHECK(cpu::shared_pool(2, false) != pool);
  const std::weak_ptr<cpu::ThreadPool> gone = cpu::shared_pool(4, false);
  CHECK(gone.expired());
  CHECK(cpu::shared_pool(4, false)->threads() == 4);
}

TEST(shared_pools_take_turns) {
  // Three callers use two pools. No more threads than the larger pool's compute at any time.
  std::atomic<int> running = 0;
  std::atomic<int> most = 0;
  std::atomic<int> thrown = 0;
  std::barrier start(3);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&, caller] {
      const auto pool = cpu::shared_pool(caller == 0 ? 2 : 3, false);
      start.arrive_and_wait();
      for (int round = 0; round < 200; ++round) {
        std::atomic<int> calls = 0;
        try {
          pool->parallel_for(8, [&](int64_t index, int) {
            const int now = ++running;
            for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
            }
            std::this_thread::sleep_for(std::chrono::microseconds(5));
            --running;
            ++calls;
            if (caller == 2 && index == 3) throw RuntimeError("index 3");
          });
          CHECK(caller != 2 && calls == 8);
        } catch (const RuntimeError&) {
          CHECK(caller == 2);
          ++thrown;
        }
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(most >= 2 && most <= 3);
  CHECK(thrown == 200);
}

TEST(a_long_loop_lets_others_go_on) {
  const auto pool = cpu::shared_pool(2, false);
  std::atomic<bool> other_done = false;
  std::atomic<int> calls = 0;
  std::thread other;
  constexpr int kIndices = 20000;  // calls of 1 ms each, until the other caller is done
  pool->parallel_for(kIndices, [&](int64_t index, int) {
    if (index == 0) {
      other = std::thread([&] {
        for (int i = 0; i < 50; ++i) pool->parallel_for(2, [](int64_t, int) {});
        other_done = true;
      });
    }
    if (!other_done) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    // A loop that goes on after a pause skips nothing and does nothing twice.
    ++calls;
    if (index == kIndices - 1) CHECK(other_done);
  });
  CHECK(calls == kIndices);
  other.join();
}

TEST(one_thread_waits_for_nobody) {
  const auto wide = cpu::shared_pool(2, false);
  const auto narrow = cpu::shared_pool(1, false);
  std::atomic<int> calls = 0;
  wide->parallel_for(2, [&](int64_t index, int) {
    if (index == 0)
      std::thread([&] { narrow->parallel_for(5, [&](int64_t, int) { ++calls; }); }).join();
  });
  CHECK(calls == 5);
}

TEST(pinned_workers_stay_on_their_cores) {
  const std::vector<int> cores = cpu::allowed_cores();
  const auto count = static_cast<int>(cores.size());
  CHECK_THROWS_WITH(cpu::shared_pool(count + 1, true), "with pin_threads, expected at most");
  if (count < 2) return;
  const auto pool = cpu::shared_pool(count, true);
  CHECK(cpu::shared_pool(count, false) != pool);
  pool->parallel_for(1000, [&](int64_t, int worker) {
    const std::vector<int> found = cpu::allowed_cores();
    CHECK(found == (worker == 0 ? cores : std::vector{cores[static_cast<size_t>(worker)]}));
    std::this_thread::yield();
  });

  // A caller with its own affinity mask has other threads and another turn.
  std::thread([&] {
    cpu::pin_to_core(cores[1]);
    CHECK(cpu::shared_pool(0, false)->threads() == 1);
    const auto own = cpu::shared_pool(2, false);
    own->parallel_for(100,
                      [&](int64_t, int) { CHECK(cpu::allowed_cores() == std::vector{cores[1]}); });
    pool->parallel_for(2, [&](int64_t index, int) {
      // This would hang if it had to wait for the turn that is taken.
      if (index == 0) own->parallel_for(2, [](int64_t, int) {});
    });
  }).join();
}

}  // namespace
}  // namespace packhorse::cpu_test
