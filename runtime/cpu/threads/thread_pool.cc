#include "cpu/threads/thread_pool.h"

#include <unistd.h>

#include <system_error>
#include <utility>

#include "core/format.h"
#include "cpu/threads/spin.h"
#include "packhorse/error.h"

namespace packhorse::cpu {
namespace {

// state_ = epoch << 16 | open << 15 | joined. A worker joins only while the loop is open, and
// leaves when no index is left or the turn is over. So the caller never waits for a worker that is
// still asleep.
constexpr uint32_t kJoined = 0x7fff;
constexpr uint32_t kOpen = 0x8000;
constexpr uint32_t kEpoch = 0x10000;

// Time for which threads spin before they sleep. Idle workers spin for longer than the gap between
// two operators of a model, but briefly enough for a shared machine. A caller waits for workers
// that have joined its loop, and so run; to be woken would take longer than most of what they have
// to do.
constexpr uint64_t kIdleMicroseconds = 13;
constexpr uint64_t kCallerMicroseconds = 100;

}  // namespace

ThreadPool::ThreadPool(int threads, std::shared_ptr<FairMutex> turn,
                       std::function<void(int worker)> on_start)
    : threads_(threads),
      owner_(getpid()),
      turn_(std::move(turn)),
      workers_(std::make_unique<std::vector<std::thread>>()) {
  if (threads < 1 || threads > static_cast<int>(kJoined)) {
    throw InvalidArgument(concat("threads is ", threads, ", expected 1 to ", kJoined));
  }
  try {
    for (int worker = 1; worker < threads_; ++worker) {
      workers_->emplace_back([this, worker, on_start] {
        on_start(worker);
        work(worker);
      });
    }
  } catch (const std::system_error& error) {
    const size_t started = workers_->size();
    stop();
    throw RuntimeError(
        concat("thread ", started + 1, " of ", threads_, " could not be started: ", error.what()));
  } catch (...) {  // no memory
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() {
  if (getpid() != owner_) {
    // The threads exist only in the parent process; joining or detaching them here is undefined.
    static_cast<void>(workers_.release());
    return;
  }
  stop();
}

void ThreadPool::stop() {
  stop_.store(true, std::memory_order_relaxed);
  state_.fetch_add(kEpoch, std::memory_order_release);
  state_.notify_all();
  for (std::thread& worker : *workers_) worker.join();
}

void ThreadPool::run(const Loop& loop) {
  if (getpid() != owner_) {
    throw RuntimeError(concat("this CPU session was made by process ", owner_,
                              " and is used in its fork ", getpid(),
                              ", which has none of its threads: load the session after fork()"));
  }
  if (threads_ == 1 || loop.count <= 1) {
    for (int64_t index = 0; index < loop.count; ++index) loop.call(loop.context, index, 0);
    return;
  }
  int64_t next = 0;
  do {
    const FairLock turn(*turn_);
    loop_ = loop;
    error_ = nullptr;
    next_.store(next, std::memory_order_relaxed);
    state_.fetch_add(kEpoch | kOpen, std::memory_order_release);
    state_.notify_all();
    claim(0);
    uint32_t state = state_.fetch_sub(kOpen, std::memory_order_acq_rel) - kOpen;
    while ((state & kJoined) != 0) state = wait_for_change(state, kCallerMicroseconds);
    if (error_ != nullptr) std::rethrow_exception(std::exchange(error_, nullptr));
    next = next_.load(std::memory_order_relaxed);
  } while (next < loop.count);
}

// Waits until state_ differs from `seen` and returns its value.
uint32_t ThreadPool::wait_for_change(uint32_t seen, uint64_t microseconds) {
  const uint64_t start = ticks_now(), ticks = ticks_of(microseconds);
  do {
    const uint32_t now = state_.load(std::memory_order_acquire);
    if (now != seen) return now;
    ahead_.fetch_and_pause();
  } while (ticks_now() - start < ticks);
  state_.wait(seen, std::memory_order_acquire);
  return state_.load(std::memory_order_acquire);
}

void ThreadPool::work(int worker) {
  uint32_t seen = 0;
  while (true) {
    uint32_t state = wait_for_change(seen, kIdleMicroseconds);
    if (stop_.load(std::memory_order_relaxed)) return;
    const bool new_loop = (state & kOpen) != 0 && (state ^ seen) >= kEpoch;
    if (new_loop) {
      if (!state_.compare_exchange_strong(state, state + 1, std::memory_order_acq_rel)) continue;
      claim(worker);
      state = state_.fetch_sub(1, std::memory_order_acq_rel) - 1;
      // Only the caller can be waiting for this change, because workers wait for another epoch.
      if ((state & (kOpen | kJoined)) == 0) state_.notify_all();
    }
    seen = state;
  }
}

void ThreadPool::claim(int worker) {
  try {
    do {
      const int64_t index = next_.fetch_add(1, std::memory_order_relaxed);
      if (index >= loop_.count) return;
      loop_.call(loop_.context, index, worker);
    } while (!turn_->is_over());
  } catch (...) {
    next_.store(loop_.count, std::memory_order_relaxed);
    const std::lock_guard<std::mutex> lock(error_mutex_);
    if (error_ == nullptr) error_ = std::current_exception();
  }
}

}  // namespace packhorse::cpu
