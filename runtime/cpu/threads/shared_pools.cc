#include "cpu/threads/shared_pools.h"

#include <unistd.h>

#include <atomic>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "core/format.h"
#include "cpu/threads/affinity.h"
#include "cpu/threads/one_thread.h"
#include "packhorse/error.h"

namespace packhorse::cpu {
namespace {

using Cores = std::vector<int>;

struct Pools {
  const pid_t process = getpid();
  std::mutex mutex;
  std::map<Cores, std::weak_ptr<FairMutex>> turns;
  std::map<std::tuple<Cores, int, bool>, std::weak_ptr<ThreadPool>> pools;
};

// Returns the pools of this process. A forked child inherits locks that nobody will release, so it
// makes new pools and leaves those of its parent as they are.
Pools& pools_here() {
  static std::atomic<Pools*> current{nullptr};
  Pools* found = current.load();
  while (found == nullptr || found->process != getpid()) {
    auto made = std::make_unique<Pools>();
    if (current.compare_exchange_strong(found, made.get())) return *made.release();
  }
  return *found;
}

template <class Map>
void forget_expired(Map& map) {
  std::erase_if(map, [](const auto& entry) { return entry.second.expired(); });
}

}  // namespace

std::shared_ptr<ThreadPool> shared_pool(int threads, bool pinned) {
  const Cores cores = allowed_cores();
  const auto available = static_cast<int>(cores.size());
  if (threads == 0) threads = available;
  if (pinned && threads > available) {
    throw InvalidArgument(concat("threads is ", threads, " with pin_threads, expected at most the ",
                                 available, " cores of the affinity mask"));
  }
  Pools& here = pools_here();
  const std::lock_guard lock(here.mutex);
  forget_expired(here.pools);
  forget_expired(here.turns);
  std::weak_ptr<ThreadPool>& known = here.pools[{cores, threads, pinned}];
  std::shared_ptr<ThreadPool> pool = known.lock();
  if (pool != nullptr) return pool;
  std::shared_ptr<FairMutex> turn = here.turns[cores].lock();
  if (turn == nullptr) here.turns[cores] = turn = std::make_shared<FairMutex>();
  known = pool = std::make_shared<ThreadPool>(threads, turn, [cores, pinned](int worker) {
    use_one_thread();
    if (pinned) pin_to_core(cores[static_cast<size_t>(worker)]);
  });
  return pool;
}

}  // namespace packhorse::cpu
