// What a session will use, byte by byte, known before it is allocated.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace packhorse {

/// One named buffer of a planned allocation. Buffers whose lifetimes do not overlap may share
/// bytes.
struct PlannedBuffer {
  std::string name;
  size_t offset = 0;
  size_t bytes = 0;
};

/// One allocation: its exact size and what lies in it.
struct PlannedAllocation {
  size_t bytes = 0;  // peak = size of the allocation
  std::vector<PlannedBuffer> buffers;
};

/// Weights may be shared by sessions of one device; the arena is the session's own.
struct MemoryPlan {
  PlannedAllocation weights;
  PlannedAllocation arena;
  size_t total_bytes() const { return weights.bytes + arena.bytes; }
};

}  // namespace packhorse
