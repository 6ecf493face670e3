#include "cpu/common/profile.h"

#include <array>
#include <cstddef>
#include <cstdint>

namespace packhorse::cpu {
namespace {

constexpr std::array<const char*, kCpuParts> kNames = {"product", "attention", "norm", "quantize",
                                                       "other"};

// Slots, a cache line each, for as many threads; if there are more, some share one.
constexpr size_t kSlots = 64;
struct alignas(64) Slot {
  std::array<std::atomic<int64_t>, kCpuParts> nanoseconds{};
};
std::array<Slot, kSlots> slots;
std::atomic<size_t> threads_seen{0};

}  // namespace

std::atomic<bool> CpuTimer::active_{false};

void CpuTimer::add(CpuPart part, Clock::duration time) {
  thread_local const size_t slot = threads_seen.fetch_add(1, std::memory_order_relaxed) % kSlots;
  slots[slot].nanoseconds[static_cast<size_t>(part)].fetch_add(
      std::chrono::duration_cast<std::chrono::nanoseconds>(time).count(),
      std::memory_order_relaxed);
}

void start_profile() {
  CpuTimer::set_active(false);
  for (Slot& slot : slots) {
    for (auto& time : slot.nanoseconds) time.store(0, std::memory_order_relaxed);
  }
  CpuTimer::set_active(true);
}

std::vector<std::pair<std::string, double>> stop_profile() {
  CpuTimer::set_active(false);
  std::vector<std::pair<std::string, double>> parts;
  for (size_t i = 0; i < kNames.size(); ++i) {
    double seconds = 0;
    for (const Slot& slot : slots) {
      seconds += 1e-9 * static_cast<double>(slot.nanoseconds[i].load(std::memory_order_relaxed));
    }
    parts.emplace_back(kNames[i], seconds);
  }
  return parts;
}

}  // namespace packhorse::cpu
