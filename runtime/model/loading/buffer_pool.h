// Buffers that threads take in turn, so that memory is not asked for again for each task.
#pragma once

#include <mutex>
#include <utility>
#include <vector>

namespace packhorse {

/// As many buffers as threads have used at once. A copy begins without any.
template <class Buffer>
class BufferPool {
 public:
  BufferPool() = default;
  BufferPool(const BufferPool&) {}
  BufferPool& operator=(const BufferPool&) = delete;

  /// Calls body(buffer), which finds in it whatever another call has left.
  template <class Body>
  void use(const Body& body) {
    Buffer buffer = take();
    body(buffer);
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(buffer));
  }

 private:
  Buffer take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return {};
    Buffer buffer = std::move(free_.back());
    free_.pop_back();
    return buffer;
  }

  std::mutex mutex_;
  std::vector<Buffer> free_;
};

}  // namespace packhorse
