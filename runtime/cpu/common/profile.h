// The timers behind packhorse/cpu_profile.h.
#pragma once

#include <atomic>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace packhorse::cpu {

enum class CpuPart { kProduct, kAttention, kNorm, kQuantize, kOther };
inline constexpr int kCpuParts = 5;

/// Adds the time of its scope to a part while measuring is on.
class CpuTimer {
 public:
  explicit CpuTimer(CpuPart part) : part_(part), on_(active_.load(std::memory_order_relaxed)) {
    if (on_) start_ = Clock::now();
  }
  ~CpuTimer() {
    if (on_) add(part_, Clock::now() - start_);
  }
  CpuTimer(const CpuTimer&) = delete;
  CpuTimer& operator=(const CpuTimer&) = delete;

  static void set_active(bool active) { active_.store(active, std::memory_order_relaxed); }

 private:
  using Clock = std::chrono::steady_clock;
  static void add(CpuPart part, Clock::duration time);

  static std::atomic<bool> active_;
  const CpuPart part_;
  const bool on_;
  Clock::time_point start_;
};

/// Begin and end of a profile, for start_cpu_profile and stop_cpu_profile.
void start_profile();
std::vector<std::pair<std::string, double>> stop_profile();

}  // namespace packhorse::cpu
