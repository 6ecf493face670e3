#include "cpu/threads/fair_mutex.h"

namespace packhorse::cpu {
namespace {

// A slice is long compared with the cost of passing the turn on, and short compared with the time
// that a person notices.
constexpr auto kSlice = std::chrono::milliseconds(1);

}  // namespace

void FairMutex::take() {
  std::unique_lock lock(mutex_);
  const auto me = std::this_thread::get_id();
  const bool goes_on = holder_ == me && Clock::now() < end_;
  if (taken_ || !(goes_on || queue_.empty())) {
    std::condition_variable granted;
    queue_.push_back(&granted);
    ++waiting_;
    granted.wait(lock, [&] { return !taken_ && queue_.front() == &granted; });
    queue_.pop_front();
    --waiting_;
  }
  taken_ = true;
  if (!goes_on) end_ = Clock::now() + kSlice;
  holder_ = me;
}

void FairMutex::release() {
  const std::lock_guard lock(mutex_);
  taken_ = false;
  // This must happen under the lock, because a waiting thread destroys its condition variable when
  // it goes on.
  if (!queue_.empty()) queue_.front()->notify_one();
}

}  // namespace packhorse::cpu
