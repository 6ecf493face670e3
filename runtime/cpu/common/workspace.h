// Carves buffers out of an operator's workspace. With a null base it only counts, so that one
// routine gives both the size and the pointers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/math.h"

namespace packhorse::cpu {

class Workspace {
 public:
  explicit Workspace(void* base = nullptr) : base_(static_cast<char*>(base)) {}

  /// Takes `count` elements, which begin at the next cache line.
  template <class T = std::byte>
  T* take(int64_t count) {
    char* at = base_ != nullptr ? base_ + bytes_ : nullptr;
    bytes_ += round_up(static_cast<size_t>(count) * sizeof(T), 64);
    return reinterpret_cast<T*>(at);
  }
  size_t bytes() const { return bytes_; }

 private:
  char* base_;
  size_t bytes_ = 0;
};

}  // namespace packhorse::cpu
