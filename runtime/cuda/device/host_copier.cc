// Helpers that sleep between rounds; in a round each copies one part, and the caller another.
#include "cuda/device/host_copier.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <system_error>

#include "core/format.h"
#include "core/math.h"
#include "packhorse/error.h"

namespace packhorse::cuda {
namespace {

constexpr size_t kSmall = size_t{512} << 10;  // bytes that one thread copies before another wakes

}  // namespace

HostCopier::HostCopier(int threads)
    : owner_(getpid()), helpers_(std::make_unique<std::vector<std::thread>>()) {
  try {
    for (int i = 1; i < threads; ++i) {
      helpers_->emplace_back([this, helper = static_cast<size_t>(i)] { work(helper); });
    }
  } catch (const std::system_error& error) {
    const size_t started = helpers_->size();
    stop();
    throw RuntimeError(
        concat("thread ", started + 1, " of ", threads, " could not be started: ", error.what()));
  } catch (...) {  // no memory
    stop();
    throw;
  }
}

HostCopier::~HostCopier() {
  if (getpid() != owner_) {
    // The threads exist only in the parent process; joining or detaching them here is undefined.
    static_cast<void>(helpers_.release());
    return;
  }
  stop();
}

void HostCopier::copy(void* to, const void* from, size_t bytes) {
  if (bytes <= kSmall || helpers_->empty()) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return;
  }
  to_ = static_cast<unsigned char*>(to);
  from_ = static_cast<const unsigned char*>(from);
  bytes_ = bytes;
  start_round();
  copy_part(0);
  size_t working = working_.load(std::memory_order_acquire);
  while (working != 0) {
    working_.wait(working, std::memory_order_acquire);
    working = working_.load(std::memory_order_acquire);
  }
}

void HostCopier::start_round() {
  working_.store(helpers_->size(), std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
}

void HostCopier::copy_part(size_t part) const {
  const size_t size = round_up(ceil_div(bytes_, helpers_->size() + 1), size_t{64});
  const size_t begin = std::min(part * size, bytes_);
  const size_t count = std::min(size, bytes_ - begin);
  if (count > 0) std::memcpy(to_ + begin, from_ + begin, count);
}

// A round begins after all helpers have finished the one before, so that none misses one.
void HostCopier::work(size_t helper) {
  for (uint32_t seen = 0;; ++seen) {
    round_.wait(seen, std::memory_order_acquire);
    if (stops_) return;
    copy_part(helper);
    if (working_.fetch_sub(1, std::memory_order_acq_rel) == 1) working_.notify_one();
  }
}

void HostCopier::stop() {
  stops_ = true;
  start_round();
  for (std::thread& helper : *helpers_) helper.join();
}

}  // namespace packhorse::cuda
