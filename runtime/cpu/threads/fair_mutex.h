// Decides which of several callers may run parallel loops: one at a time, each for a slice of time.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace packhorse::cpu {

/// A lock that is granted in order of arrival, with one exception: the caller that held it last
/// goes before those that wait until its slice is over, so that a short run is not interrupted at
/// each of its loops.
class FairMutex {
 public:
  void take();
  void release();
  /// True if the holder of the turn should let others run: its slice is over and somebody waits.
  /// Any thread that works for the holder may ask.
  bool is_over() const {
    return waiting_.load(std::memory_order_relaxed) > 0 && Clock::now() >= end_;
  }

 private:
  using Clock = std::chrono::steady_clock;

  std::mutex mutex_;
  std::deque<std::condition_variable*> queue_;
  std::atomic<int> waiting_{0};
  bool taken_ = false;
  std::thread::id holder_;  // the current or last holder
  Clock::time_point end_;   // end of the holder's slice
};

class FairLock {
 public:
  explicit FairLock(FairMutex& mutex) : mutex_(mutex) { mutex_.take(); }
  ~FairLock() { mutex_.release(); }
  FairLock(const FairLock&) = delete;
  FairLock& operator=(const FairLock&) = delete;

 private:
  FairMutex& mutex_;
};

}  // namespace packhorse::cpu
