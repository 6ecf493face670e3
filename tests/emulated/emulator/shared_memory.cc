// The shared memory of a block: its window of addresses, its variables, and what has been fenced.
#include <cstring>

#include "emulator/machine.h"

namespace emulated {
namespace {

constexpr size_t kArenaBytes = 256 * 1024;  // size of the window

}  // namespace

void Machine::map_shared() {
  // Addresses of the window and of the host agree in their lower 18 bits.
  char* const all = map_memory(2 * kArenaBytes);
  shared_ = all + (kArenaBytes - reinterpret_cast<uintptr_t>(all) % kArenaBytes) % kArenaBytes;
  fenced_ = map_memory(kArenaBytes);
}

void Machine::begin_shared(size_t dynamic_bytes) {
  std::memset(shared_, 0xff, kArenaBytes);
  std::memset(fenced_, 0xff, kArenaBytes);
  statics_.clear();
  dynamic_bytes_ = dynamic_bytes;
  static_end_ = kSharedBegin + (dynamic_bytes_ + 1023) / 1024 * 1024;
}

char* Machine::shared(uint32_t address, size_t bytes, size_t alignment) {
  if (address % alignment != 0) {
    fail("shared address " + std::to_string(address) + " is no multiple of " +
         std::to_string(alignment));
  }
  if (address < kSharedBegin || address + bytes > static_end_) {
    fail("shared address " + std::to_string(address) + " of " + std::to_string(bytes) +
         " bytes is outside of what the block has");
  }
  return shared_ + address;
}

uint32_t Machine::shared_address(const void* pointer) {
  const auto* const at = static_cast<const char*>(pointer);
  if (at < shared_ + kSharedBegin || at > shared_ + static_end_) {
    fail("a pointer is used as one into shared memory, but is none");
  }
  return static_cast<uint32_t>(at - shared_);
}

void Machine::fence_async() {
  std::memcpy(fenced_ + kSharedBegin, shared_ + kSharedBegin, static_end_ - kSharedBegin);
  fence_barriers();
}

void Machine::fence_barriers() {
  for (auto& [address, barrier] : barriers_) barrier.fenced = true;
}

void Machine::check_fenced(const char* who, uint32_t address, size_t bytes) {
  if (std::memcmp(shared_ + address, fenced_ + address, bytes) == 0) return;
  fail(std::string(who) + " shared memory at address " + std::to_string(address) +
       ", which threads have written with no fence.proxy.async since, or write at the same time");
}

void Machine::write_async(uint32_t address, const void* from, size_t bytes) {
  check_fenced("a copy replaces", address, bytes);
  std::memcpy(shared_ + address, from, bytes);
  std::memcpy(fenced_ + address, from, bytes);
}

void* Machine::dynamic_shared(size_t) { return shared_ + kSharedBegin; }

void* Machine::static_shared(const void* key, size_t bytes, size_t alignment) {
  const auto found = statics_.find(key);
  if (found != statics_.end()) return shared_ + found->second;
  const size_t begin = (static_end_ + alignment - 1) / alignment * alignment;
  static_end_ = begin + bytes;
  if (static_end_ > kSharedBegin + kMostShared)
    fail("a block has more than 227 KiB of shared memory");
  statics_[key] = static_cast<uint32_t>(begin);
  return shared_ + begin;
}

// Checks what must hold when all threads have ended.
void Machine::end_block() {
  for (const Warp& warp : warps_) {
    if (!warp.products.empty() || !warp.open_products.empty()) {
      fail("a warp ends with a wgmma that it has not waited for");
    }
  }
  for (size_t i = 0; i + 3 < warps_.size(); i += 4) {
    for (size_t j = 1; j < 4; ++j) {
      if (warps_[i].issued != warps_[i + j].issued) {
        fail("warps of one warpgroup have issued different numbers of wgmma");
      }
    }
  }
  for (const NamedBarrier& barrier : named_) {
    if (!barrier.waiting.empty()) fail("threads still wait at a barrier");
  }
  const auto outside = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      if (static_cast<unsigned char>(shared_[i]) != 0xff) {
        fail("shared memory was written at address " + std::to_string(i) +
             ", which is outside of what the block has: " + std::to_string(dynamic_bytes_) +
             " dynamic bytes from " + std::to_string(kSharedBegin) + " on, static ones up to " +
             std::to_string(static_end_));
      }
    }
  };
  outside(0, kSharedBegin);
  outside(kSharedBegin + dynamic_bytes_, kSharedBegin + (dynamic_bytes_ + 1023) / 1024 * 1024);
  outside(static_end_, kArenaBytes);
}

}  // namespace emulated
