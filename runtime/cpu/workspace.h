// Carves an op's workspace. From a null base it counts: the same routine gives size and pointers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace packhorse::cpu {

class Workspace {
 public:
  explicit Workspace(void* base = nullptr) : base_(static_cast<char*>(base)) {}

  /// `count` elements from the next cache line on.
  template <class T = std::byte>
  T* take(int64_t count) {
    char* at = base_ != nullptr ? base_ + bytes_ : nullptr;
    bytes_ += (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
    return reinterpret_cast<T*>(at);
  }
  size_t bytes() const { return bytes_; }

 private:
  char* base_;
  size_t bytes_ = 0;
};

}  // namespace packhorse::cpu
