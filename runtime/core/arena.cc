#include "core/arena.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/format.h"
#include "core/math.h"
#include "packhorse/error.h"

namespace packhorse {
namespace {

constexpr size_t align_up(size_t offset) { return round_up(offset, Arena::kAlignment); }

}  // namespace

Arena::Arena(std::optional<size_t> limit) : limit_(limit) {}

Arena::Arena(void* base, PlannedAllocation plan)
    : carving_(true), base_(static_cast<char*>(base)), plan_(std::move(plan)) {
  if (reinterpret_cast<uintptr_t>(base) % kAlignment != 0) {
    throw InvalidArgument(
        concat("arena memory at ", base, "; expected a multiple of ", kAlignment));
  }
}

TensorView Arena::take_matrix(std::string_view name, int64_t rows, int64_t columns, DType dtype) {
  const size_t row_bytes = static_cast<size_t>(columns) * size_of(dtype);
  return TensorView(take(name, static_cast<size_t>(rows), row_bytes), dtype, rows, columns);
}

void* Arena::take(std::string_view name, size_t count, size_t item_bytes) {
  size_t bytes = 0;
  if (__builtin_mul_overflow(count, item_bytes, &bytes)) {
    throw OutOfMemory(concat("buffer '", name, "' of ", count, " times ", item_bytes,
                             " bytes exceeds the address space"));
  }
  return take(name, bytes);
}

void* Arena::take(std::string_view name, size_t bytes) {
  const size_t offset = align_up(top_);
  size_t end = 0;
  if (__builtin_add_overflow(offset, bytes, &end) || end > PTRDIFF_MAX) {
    throw OutOfMemory(concat("buffer '", name, "' of ", bytes, " bytes at offset ", offset,
                             " exceeds the address space"));
  }
  return carving_ ? carve(name, offset, end) : count(name, offset, end);
}

void* Arena::count(std::string_view name, size_t offset, size_t end) {
  if (limit_ && end > *limit_) {
    throw OutOfMemory(concat("arena buffer '", name, "' of ", end - offset,
                             " bytes raises the arena to ", end, " bytes; the limit leaves ",
                             *limit_));
  }
  plan_.buffers.push_back({std::string(name), offset, end - offset});
  plan_.bytes = std::max(plan_.bytes, end);
  top_ = end;
  return nullptr;
}

void* Arena::carve(std::string_view name, size_t offset, size_t end) {
  if (next_ == plan_.buffers.size()) {
    throw RuntimeError(concat("arena buffer '", name, "' was not planned: the plan ends after ",
                              next_, " buffers"));
  }
  const PlannedBuffer& planned = plan_.buffers[next_];
  if (name != planned.name || offset != planned.offset || end - offset != planned.bytes) {
    throw RuntimeError(concat("arena buffer ", next_, " departs from the plan: found '", name,
                              "', ", end - offset, " bytes at ", offset, "; planned '",
                              planned.name, "', ", planned.bytes, " bytes at ", planned.offset));
  }
  ++next_;
  top_ = end;
  return base_ + offset;
}

}  // namespace packhorse
