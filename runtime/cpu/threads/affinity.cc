#include "cpu/threads/affinity.h"

#include <sched.h>

#include <algorithm>
#include <numeric>
#include <thread>

namespace packhorse::cpu {
namespace {

// A set of cores that can hold [0, count). A plain cpu_set_t ends at core 1024.
class CoreSet {
 public:
  explicit CoreSet(int count) : set_(CPU_ALLOC(count)), bytes_(CPU_ALLOC_SIZE(count)) {
    CPU_ZERO_S(bytes_, set_);
  }
  ~CoreSet() { CPU_FREE(set_); }
  CoreSet(const CoreSet&) = delete;
  CoreSet& operator=(const CoreSet&) = delete;

  bool load() { return sched_getaffinity(0, bytes_, set_) == 0; }
  bool apply() { return sched_setaffinity(0, bytes_, set_) == 0; }
  void add(int core) { CPU_SET_S(core, bytes_, set_); }
  bool has(int core) const { return CPU_ISSET_S(core, bytes_, set_); }

 private:
  cpu_set_t* set_;
  size_t bytes_;
};

constexpr int kMostCores = 1 << 16;

}  // namespace

std::vector<int> allowed_cores() {
  std::vector<int> cores;
  for (int count = 1024; cores.empty() && count <= kMostCores; count *= 2) {
    CoreSet set(count);
    if (!set.load()) continue;  // the machine has more cores than the set can hold
    for (int core = 0; core < count; ++core) {
      if (set.has(core)) cores.push_back(core);
    }
  }
  if (cores.empty()) {
    cores.resize(std::max(1u, std::thread::hardware_concurrency()));
    std::iota(cores.begin(), cores.end(), 0);
  }
  return cores;
}

void pin_to_core(int core) {
  CoreSet set(core + 1);
  set.add(core);
  static_cast<void>(set.apply());
}

}  // namespace packhorse::cpu
