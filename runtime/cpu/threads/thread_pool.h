// Worker threads that are created once, and over which one loop at a time is spread.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

#include "cpu/threads/fair_mutex.h"
#include "cpu/threads/read_ahead.h"

namespace packhorse::cpu {

/// A pool of worker threads. In a loop, each worker claims the next index until none is left. The
/// calling thread is worker 0, so a pool of one thread has no worker thread at all. Idle workers
/// spin for some microseconds, then sleep.
class ThreadPool {
 public:
  /// `turn` is held by the loop that runs, in this pool or in any other that shares it. Each worker
  /// thread (workers 1 to threads - 1) calls `on_start` first.
  ThreadPool(int threads, std::shared_ptr<FairMutex> turn,
             std::function<void(int worker)> on_start);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  /// Calls body(index, worker) for every index in [0, count), with worker in [0, threads()), and
  /// returns when all calls have returned. The first exception ends the loop early and is thrown
  /// here. Any number of threads may call this: they wait for the turn, and a long loop lets others
  /// run between two of its indices. Loops that run on the caller only (one thread, or one index)
  /// never wait. `body` must not call this function. Throws RuntimeError in a forked child, where
  /// the workers do not exist.
  template <class Body>
  void parallel_for(int64_t count, Body&& body) {
    run({[](void* context, int64_t index, int worker) {
           (*static_cast<std::remove_reference_t<Body>*>(context))(index, worker);
         },
         &body, count});
  }

  /// Weights that threads read ahead from now on while they wait for a loop or for its end. Each of
  /// them is going to read a part of it.
  void read_ahead(const ReadAhead::Range& range) { ahead_.set(range, threads_); }

 private:
  struct Loop {
    void (*call)(void* context, int64_t index, int worker) = nullptr;
    void* context = nullptr;
    int64_t count = 0;
  };

  void run(const Loop& loop);
  uint32_t wait_for_change(uint32_t seen, uint64_t microseconds);
  void work(int worker);
  void claim(int worker);
  void stop();

  const int threads_;
  const pid_t owner_;
  const std::shared_ptr<FairMutex> turn_;
  Loop loop_;
  std::exception_ptr error_;
  std::mutex error_mutex_;
  std::atomic<bool> stop_{false};
  // The epoch of the loop, whether workers may join it, and how many have joined.
  alignas(64) std::atomic<uint32_t> state_{0};
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) ReadAhead ahead_;
  std::unique_ptr<std::vector<std::thread>> workers_;
};

}  // namespace packhorse::cpu
