// The memory plan says exactly how much memory a session will use, before any is allocated.
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

/// One allocation: its exact size and the buffers in it.
struct PlannedAllocation {
  size_t bytes = 0;  // size of the allocation, which is the peak use
  std::vector<PlannedBuffer> buffers;
};

/// The plan of a session. Sessions on one device may share weights; each has an arena of its own.
struct MemoryPlan {
  PlannedAllocation weights;
  PlannedAllocation arena;
  size_t total_bytes() const { return weights.bytes + arena.bytes; }
};

}  // namespace packhorse
