// The parts of the emulator that its instructions use: fibres, warps, barriers, and what is to be
// done later. A machine runs one block.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "emulator/asm.h"
#include "emulator/emulator.h"
#include "emulator/launch.h"

namespace emulated {

/// Operations of one thread that complete in groups, in order: cp.async, or bulk stores.
struct Groups {
  std::vector<std::function<void()>> open;
  std::deque<std::vector<std::function<void()>>> committed;
  /// Ends the open group.
  void commit();
  /// Does what all groups but the latest `left` hold, in any order within a group.
  void complete(size_t left);
  /// Returns whether some operation has not been done.
  bool pending() const;
};

struct Fibre {
  Place place;
  int index = 0;  // number of its thread in the block
  void* stack_pointer = nullptr;
  char* stack = nullptr;  // the lowest address of its stack
  enum class State : uint8_t { kReady, kBlocked, kDone } state = State::kReady;
  const char* waits_for = "";
  const char* at = "";       // file and line of the latest asm statement
  uint64_t detail = 0;       // what it waits for: a barrier number, or an mbarrier address
  bool may_give_up = false;  // waits for a barrier, but may go on without
  bool gave_up = false;
  uint64_t tried = 0;   // the phase of an mbarrier that it has tried in vain
  bool passed = false;  // a phase has ended, but other lanes of the warp may not have come yet
  Groups copies;        // cp.async
  Groups stores;        // bulk copies from shared to global memory
  int lane() const { return index % 32; }
  int warp() const { return index / 32; }
};

/// Lanes of a warp that meet at an instruction.
struct Meeting {
  uint32_t mask, arrived;
  const void* what;
  const char* name;
  std::array<void*, 32> data;
  uint64_t number;
};

struct Warp {
  std::vector<Meeting> meetings;
  std::vector<std::function<void()>> open_products;
  std::deque<std::vector<std::function<void()>>> products;
  uint64_t issued = 0;
  bool fenced = false;  // wgmma.fence came before the first wgmma
};

struct NamedBarrier {
  int expected = 0;
  int arrived = 0;
  int with_value = 0;
  int last_with_value = 0;
  std::vector<bool> who;
  std::vector<int> waiting;
};

/// The state of an mbarrier. The object in shared memory holds a number that says that it is one.
struct SharedBarrier {
  uint64_t cookie = 0;
  int64_t expected = 0;
  int64_t pending = 0;
  int64_t bytes = 0;  // bytes that transactions must still bring
  uint64_t phase = 0;
  bool fenced = false;  // since it was initialised
};

constexpr uint32_t kSharedBegin = 1024;  // address of dynamic shared memory, as on devices
constexpr size_t kMostShared = 227 * 1024;

class Machine {
 public:
  Machine();
  /// `number`: of this machine among those of a launch.
  void restart(const Options& options, size_t number);
  /// An Error of the running fibre, thrown on the scheduler's stack.
  [[noreturn]] void rethrow(const std::string& what);
  void begin_block(const Grid& grid, uint3 block, const std::function<void()>& body);
  /// Goes on with the block for so many turns of its threads, until one of them looks again for
  /// what may come from other blocks, or to its end. Returns whether it has ended.
  bool run(uint64_t turns);

  Fibre& self() { return *current_; }
  Warp& warp() { return warps_[static_cast<size_t>(current_->warp())]; }
  int threads() const { return static_cast<int>(fibres_.size()); }
  Timing timing() const { return options_.timing; }
  uint32_t random(uint32_t below);
  /// Returns whether an asynchronous operation is to be done at once.
  bool at_once();

  [[noreturn]] void fail(const std::string& what);
  /// Stops the running fibre until wake() is called for it.
  void wait(const char* what, uint64_t detail = 0);
  void wake(Fibre& fibre);
  Fibre& fibre(int index) { return *fibres_[static_cast<size_t>(index)]; }
  /// Returns whether a variable on the stack of a fibre still exists; true for all other memory.
  bool alive(int fibre, const void* variable) const;
  void pause();
  /// Lets others go on, for a thread that reads the same place again and again.
  void poll();
  void maybe_pause(uint32_t one_of) {
    if (random(one_of) == 0) pause();
  }
  /// Something has happened that others may have waited for.
  void progress() { ++progress_; }

  /// The lanes of `mask` meet at `what`; the last one calls run(data of all lanes).
  void meet(uint32_t mask, const void* what, const char* name, void* data,
            const std::function<void(const std::array<void*, 32>&)>& run);
  int sync(int barrier, int count, bool value);
  void arrive(int barrier, int count);

  /// Does something later, at any time, but before the machine would stand still.
  void later(std::function<void()> operation);

  /// Shared memory at an address of the window; fails unless all `bytes` lie in what the block has.
  char* shared(uint32_t address, size_t bytes, size_t alignment);
  uint32_t shared_address(const void* pointer);
  /// fence.proxy.async: what threads have written so far may be used by copies and wgmma.
  void fence_async();
  void fence_barriers();  // fence.mbarrier_init
  /// Fails where bytes that `who` is to read or to replace were written by threads with no such
  /// fence since.
  void check_fenced(const char* who, uint32_t address, size_t bytes);
  /// Writes bytes for a copy.
  void write_async(uint32_t address, const void* from, size_t bytes);
  void* dynamic_shared(size_t alignment);
  void* static_shared(const void* key, size_t bytes, size_t alignment);

  SharedBarrier& barrier(uint32_t address);
  void init_barrier(uint32_t address, uint32_t count);
  void end_barrier(uint32_t address);
  void arrive_barrier(uint32_t address, int64_t count, int64_t bytes);
  void complete_bytes(uint32_t address, int64_t bytes);
  void expect_bytes(uint32_t address, int64_t bytes);
  /// Returns whether the phase of this parity has ended. `may_wait`: mbarrier.try_wait, else
  /// test_wait. Either may look too early, at random; otherwise it waits until the phase has ended,
  /// or until nothing else can go on.
  bool wait_barrier(uint32_t address, uint32_t parity, bool may_wait);

 private:
  friend void fibre_main();
  void switch_away();
  /// Waits until no other lane of the warp can go on without having passed, too.
  void pass_together();
  /// Wakes lanes in pass_together, unless one of the warp other than `except` can still come.
  void let_pass(int warp, const Fibre* except);
  void take_turn();
  Fibre* next();
  void check_phase(SharedBarrier& barrier, uint32_t address);
  void stand_still();
  void end_block();
  void map_shared();
  void begin_shared(size_t dynamic_bytes);
  std::string where(const Fibre& fibre) const;

  Options options_;
  std::mt19937_64 random_;
  std::vector<Fibre*> pool_;
  std::vector<Fibre*> fibres_;
  std::vector<Fibre*> ready_;
  std::vector<uint32_t> priorities_;  // priority of each warp
  std::vector<Warp> warps_;
  std::array<NamedBarrier, 16> named_;
  std::map<uint32_t, SharedBarrier> barriers_;
  std::vector<std::function<void()>> engine_;
  Fibre* current_ = nullptr;
  void* scheduler_ = nullptr;  // the scheduler's stack pointer
  const std::function<void()>* body_ = nullptr;
  size_t done_ = 0;
  bool polled_ = false;  // since run() was called
  uint64_t switches_ = 0;
  uint64_t progress_ = 0;
  uint64_t last_progress_ = 0;
  uint64_t meetings_ = 0;
  uint64_t cookies_ = 0;
  std::string error_;
  char* shared_ = nullptr;
  char* fenced_ = nullptr;  // shared memory as copies and wgmma have it
  size_t dynamic_bytes_ = 0;
  size_t static_end_ = 0;  // bytes from shared_ to the end of static variables
  std::unordered_map<const void*, uint32_t> statics_;
};

Machine& machine();
/// Memory of whole pages, zeros at first, which stays.
char* map_memory(size_t bytes);
Counts& mutable_counts();

}  // namespace emulated
