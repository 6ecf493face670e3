// Launches: checks of a grid, and its blocks one after another, or some of them in turns.
#include "emulator/launch.h"

#include <sys/mman.h>

#include <algorithm>
#include <csetjmp>
#include <csignal>
#include <cstdlib>
#include <sstream>

#include "emulator/machine.h"

namespace emulated {
namespace {

Machine* running = nullptr;
Options global_options;
Counts global_counts;
sigjmp_buf after_fault;
const void* fault_address = nullptr;

void on_fault(int, siginfo_t* info, void*) {
  fault_address = info->si_addr;
  siglongjmp(after_fault, 1);
}

// Accesses outside of memory become errors while one of these lives.
class FaultGuard {
 public:
  FaultGuard() : stack_(std::malloc(kSignalStack)) {
    const stack_t stack{.ss_sp = stack_, .ss_flags = 0, .ss_size = kSignalStack};
    sigaltstack(&stack, &old_stack_);
    struct sigaction action{};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, &old_[0]);
    sigaction(SIGBUS, &action, &old_[1]);
  }
  ~FaultGuard() {
    sigaction(SIGSEGV, &old_[0], nullptr);
    sigaction(SIGBUS, &old_[1], nullptr);
    sigaltstack(&old_stack_, nullptr);
    std::free(stack_);
  }
  FaultGuard(const FaultGuard&) = delete;
  FaultGuard& operator=(const FaultGuard&) = delete;

 private:
  static constexpr size_t kSignalStack = 64 * 1024;
  void* stack_;
  stack_t old_stack_{};
  struct sigaction old_[2]{};
};

// A function of its own, because nothing of it is looked at after a jump out of it. Each machine
// has one block at a time, and begins the next of `order` when that has ended.
[[gnu::noinline]] void run_blocks(std::vector<Machine*> machines, const Grid& grid,
                                  const std::vector<uint64_t>& order,
                                  const std::function<void()>& body) {
  Machine& first = *machines.front();
  size_t begun = 0;
  const auto begin = [&](Machine& on) {
    const uint64_t i = order[begun++];
    ++global_counts.blocks;
    const auto x = static_cast<unsigned>(i % grid.blocks.x);
    const auto y = static_cast<unsigned>(i / grid.blocks.x % grid.blocks.y);
    const auto z = static_cast<unsigned>(i / grid.blocks.x / grid.blocks.y);
    on.begin_block(grid, {x, y, z}, body);
  };
  for (Machine* one : machines) begin(*one);
  while (!machines.empty()) {
    const auto count = static_cast<uint32_t>(machines.size());
    const size_t at = count == 1 ? 0 : first.random(count);
    running = machines[at];
    const uint64_t turns = count == 1 ? UINT64_MAX : 1 + first.random(1u << first.random(12));
    if (!running->run(turns)) continue;
    if (begun < order.size()) {
      begin(*running);
    } else {
      machines.erase(machines.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
}

}  // namespace

Machine& machine() { return *running; }
Counts& mutable_counts() { return global_counts; }
const Counts& counts() { return global_counts; }
void set_options(const Options& options) { global_options = options; }

char* map_memory(size_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) throw Error("no memory for the emulator");
  return static_cast<char*>(at);
}

void launch(const Grid& grid, const std::function<void()>& body) {
  // Machines stay, with the stacks of their fibres.
  static auto& all = *new std::vector<Machine*>;
  const uint64_t threads = uint64_t{grid.threads.x} * grid.threads.y * grid.threads.z;
  if (threads == 0 || threads > 1024)
    throw Error("a block of " + std::to_string(threads) + " threads");
  const uint64_t blocks = uint64_t{grid.blocks.x} * grid.blocks.y * grid.blocks.z;
  if (blocks == 0) throw Error("a grid without blocks");
  if (grid.shared_bytes > kMostShared) throw Error("more than 227 KiB of dynamic shared memory");
  const auto resident =
      static_cast<size_t>(std::clamp<uint64_t>(global_options.resident, 1, blocks));
  while (all.size() < resident) all.push_back(new Machine);
  for (size_t i = 0; i < resident; ++i) all[i]->restart(global_options, i);
  running = all.front();
  ++global_counts.launches;
  std::vector<uint64_t> order(blocks);
  for (uint64_t i = 0; i < blocks; ++i) order[i] = i;
  for (uint64_t i = blocks; i > 1; --i) {
    std::swap(order[i - 1], order[running->random(static_cast<uint32_t>(i))]);
  }
  const FaultGuard guard;
  if (sigsetjmp(after_fault, 1) != 0) {
    std::ostringstream text;
    text << "access to address " << fault_address << ", which is outside of all memory";
    running->rethrow(text.str());
  }
  run_blocks({all.begin(), all.begin() + static_cast<std::ptrdiff_t>(resident)}, grid, order, body);
}

}  // namespace emulated
