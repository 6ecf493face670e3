// Planned memory. One routine is run twice over an Arena: first counting, then carving. What the
// count pass found is the allocation's size and the memory plan; the carve pass must agree with it.
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
  /// Every buffer starts at a multiple of this (a cache line on CPUs, a TMA/vector unit on GPUs).
  static constexpr size_t kAlignment = 256;

  /// Counting: `take` returns null and records. With a limit, `take` throws OutOfMemory naming the
  /// buffer that went over it.
  explicit Arena(std::optional<size_t> limit = std::nullopt);
  /// Carving from `base`, which holds `plan.bytes` and is aligned to kAlignment. `take` throws
  /// RuntimeError if the pass departs from the plan (another name, size or order).
  Arena(void* base, PlannedAllocation plan);

  /// A named buffer of `bytes` (0 is legal), aligned to kAlignment.
  void* take(std::string_view name, size_t bytes);
  template <class T>
  T* take_array(std::string_view name, size_t count);
  TensorView take_matrix(std::string_view name, int64_t rows, int64_t columns, DType dtype);

  /// Buffers taken inside a Scope end with it: later ones reuse their bytes.
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

  /// What was taken so far: exact peak and every buffer.
  const PlannedAllocation& plan() const { return plan_; }

 private:
  void* count(std::string_view name, size_t offset, size_t end);
  void* carve(std::string_view name, size_t offset, size_t end);

  bool carving_ = false;
  char* base_ = nullptr;
  size_t top_ = 0;
  size_t next_ = 0;  // carving: index of the next planned buffer
  std::optional<size_t> limit_;
  PlannedAllocation plan_;
};

template <class T>
T* Arena::take_array(std::string_view name, size_t count) {
  return static_cast<T*>(take(name, count * sizeof(T)));
}

}  // namespace packhorse
