// Planned memory. One routine runs twice over an Arena: first it only counts, then it carves
// buffers out of an allocation. The count determines the size of the allocation and the memory
// plan, and carving must agree with it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "packhorse/memory_plan.h"
#include "packhorse/types.h"

namespace packhorse {

class Arena {
 public:
  /// Every buffer starts at a multiple of this many bytes, which suits cache lines of CPUs, and TMA
  /// and vector loads of GPUs.
  static constexpr size_t kAlignment = 256;

  /// Makes an arena that counts: `take` returns null and records the buffer. With a limit, `take`
  /// throws OutOfMemory naming the buffer that exceeded it.
  explicit Arena(std::optional<size_t> limit = std::nullopt);
  /// Makes an arena that carves buffers from `base`, which has `plan.bytes` bytes and is aligned to
  /// kAlignment. `take` throws RuntimeError if a buffer differs from the plan in name, size or
  /// order.
  Arena(void* base, PlannedAllocation plan);

  /// Takes a named buffer of `bytes` bytes (0 is allowed), aligned to kAlignment.
  void* take(std::string_view name, size_t bytes);
  template <class T>
  T* take_array(std::string_view name, size_t count);
  TensorView take_matrix(std::string_view name, int64_t rows, int64_t columns, DType dtype);

  /// Buffers that are taken inside a Scope end with it; later ones reuse their bytes.
  class Scope {
   public:
    explicit Scope(Arena& arena) : arena_(arena), mark_(arena.top_) {}
    ~Scope() { arena_.top_ = mark_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Arena& arena_;
    size_t mark_;
  };

  /// Everything taken so far: the exact peak and every buffer.
  const PlannedAllocation& plan() const { return plan_; }

 private:
  /// Takes `count` items of `item_bytes` each.
  void* take(std::string_view name, size_t count, size_t item_bytes);
  void* count(std::string_view name, size_t offset, size_t end);
  void* carve(std::string_view name, size_t offset, size_t end);

  bool carving_ = false;
  char* base_ = nullptr;
  size_t top_ = 0;
  size_t next_ = 0;  // while carving: index of the next planned buffer
  std::optional<size_t> limit_;
  PlannedAllocation plan_;
};

template <class T>
T* Arena::take_array(std::string_view name, size_t count) {
  return static_cast<T*>(take(name, count, sizeof(T)));
}

}  // namespace packhorse
