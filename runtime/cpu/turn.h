// Who of several callers runs parallel loops: one at a time, each for a slice of time.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace packhorse::cpu {

/// First come, first served, but for the caller that had the turn last: until its slice is over it
/// goes before those that wait, so that a short run is not handed around at each of its loops.
class Turn {
 public:
  void take();
  void release();
  /// Whether who has the turn should let others go on: its slice is over and somebody waits. Any
  /// thread that works for the holder may ask.
  bool is_over() const {
    return waiting_.load(std::memory_order_relaxed) > 0 && Clock::now() >= end_;
  }

 private:
  using Clock = std::chrono::steady_clock;

  std::mutex mutex_;
  std::deque<std::condition_variable*> queue_;
  std::atomic<int> waiting_{0};
  bool taken_ = false;
  std::thread::id holder_;  // or who held it last
  Clock::time_point end_;   // of the holder's slice
};

class TurnScope {
 public:
  explicit TurnScope(Turn& turn) : turn_(turn) { turn_.take(); }
  ~TurnScope() { turn_.release(); }
  TurnScope(const TurnScope&) = delete;
  TurnScope& operator=(const TurnScope&) = delete;

 private:
  Turn& turn_;
};

}  // namespace packhorse::cpu
