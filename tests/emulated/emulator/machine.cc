// Fibres and the order in which they run.
#include "emulator/machine.h"

#include <sys/mman.h>

#include <algorithm>
#include <csetjmp>
#include <csignal>
#include <cstdlib>
#include <sstream>

#include "emulator/intrinsics.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace emulated {

namespace {

constexpr size_t kStackBytes = 512 * 1024;
constexpr uint64_t kMostSwitches = 400'000'000;

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
    struct sigaction action {};
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
  struct sigaction old_[2] {};
};

void* map_memory(size_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) throw Error("no memory for the emulator");
  return at;
}

constexpr size_t kArenaBytes = 256 * 1024;  // the window of shared memory

}  // namespace

#if !defined(__x86_64__)
#error "the emulator switches stacks by instructions of x86-64"
#endif
extern "C" void emulated_switch(void** save, void* load);
asm(R"(
.text
.globl emulated_switch
.type emulated_switch, @function
emulated_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emulated_switch, .-emulated_switch
)");

Machine& machine() { return *running; }
Counts& mutable_counts() { return global_counts; }
const Counts& counts() { return global_counts; }
void set_options(const Options& options) { global_options = options; }

void Groups::commit() {
  committed.push_back(std::move(open));
  open.clear();
}

void Groups::complete(size_t left) {
  while (committed.size() > left) {
    std::vector<std::function<void()>> group = std::move(committed.front());
    committed.pop_front();
    for (size_t i = group.size(); i > 1; --i) {
      std::swap(group[i - 1], group[machine().random(static_cast<uint32_t>(i))]);
    }
    for (const auto& operation : group) operation();
  }
}

bool Groups::pending() const {
  return !open.empty() ||
         std::any_of(committed.begin(), committed.end(), [](const auto& group) { return !group.empty(); });
}

void fibre_main() {
  Machine& self = machine();
  (*self.body_)();
  Fibre& fibre = self.self();
  if (fibre.stores.pending()) {
    self.fail("a thread ends before its bulk stores have read shared memory");
  }
  fibre.copies.commit();
  fibre.copies.complete(0);
  fibre.state = Fibre::State::kDone;
  ++self.done_;
  self.let_pass(fibre.warp(), &fibre);
  self.progress();
  self.switch_away();
  std::abort();
}

Machine::Machine(const Options& options) : options_(options), random_(options.seed * 7919 + 17) {
  // Addresses of the window and of the host agree in their lower 18 bits.
  char* const all = static_cast<char*>(map_memory(2 * kArenaBytes));
  shared_ = reinterpret_cast<char*>(
      (reinterpret_cast<uintptr_t>(all) + kArenaBytes - 1) / kArenaBytes * kArenaBytes);
  fenced_ = static_cast<char*>(map_memory(kArenaBytes));
}

void Machine::restart(const Options& options) {
  options_ = options;
  random_.seed(options.seed * 7919 + 17);
}

void Machine::rethrow(const std::string& what) {
  std::string text = what;
  if (current_ != nullptr) text += "; " + where(*current_) + ", latest PTX at " + current_->at;
  throw Error(text);
}

uint32_t Machine::random(uint32_t below) {
  return static_cast<uint32_t>((random_() >> 32) * below >> 32);
}

bool Machine::at_once() {
  return options_.timing == Timing::kEarly || (options_.timing == Timing::kAny && random(2) == 0);
}

std::string Machine::where(const Fibre& fibre) const {
  std::ostringstream text;
  text << "block (" << fibre.place.block.x << ", " << fibre.place.block.y << ", "
       << fibre.place.block.z << "), thread " << fibre.index << " (warp " << fibre.warp()
       << ", lane " << fibre.lane() << ")";
  return text.str();
}

void Machine::fail(const std::string& what) {
  error_ = what;
  if (current_ != nullptr) {
    error_ += "; " + where(*current_) + ", latest PTX at " + current_->at;
    void* unused = nullptr;
    emulated_switch(&unused, scheduler_);
  }
  throw Error(error_);
}

void Machine::switch_away() { emulated_switch(&current_->stack_pointer, scheduler_); }

void Machine::wait(const char* what, uint64_t detail) {
  current_->state = Fibre::State::kBlocked;
  current_->waits_for = what;
  current_->detail = detail;
  let_pass(current_->warp(), current_);
  switch_away();
}

void Machine::poll() {
  let_pass(current_->warp(), current_);
  pause();
}

void Machine::let_pass(int warp, const Fibre* except) {
  const auto begin = static_cast<size_t>(warp) * 32;
  const size_t end = std::min(begin + 32, fibres_.size());
  for (size_t i = begin; i < end; ++i) {
    if (fibres_[i]->state == Fibre::State::kReady && fibres_[i] != except) return;
  }
  for (size_t i = begin; i < end; ++i) {
    if (!fibres_[i]->passed) continue;
    fibres_[i]->passed = false;
    wake(*fibres_[i]);
  }
}

void Machine::pass_together() {
  if (!options_.together) return;
  current_->passed = true;
  current_->state = Fibre::State::kBlocked;
  current_->waits_for = "other lanes of its warp, which are to pass an mbarrier with it";
  let_pass(current_->warp(), current_);
  switch_away();
}

void Machine::wake(Fibre& fibre) {
  if (fibre.state != Fibre::State::kBlocked) return;
  fibre.state = Fibre::State::kReady;
  ready_.push_back(&fibre);
}

bool Machine::alive(int index, const void* variable) const {
  const Fibre& fibre = *fibres_[static_cast<size_t>(index)];
  const auto* const at = static_cast<const char*>(variable);
  if (at < fibre.stack || at >= fibre.stack + kStackBytes) return true;
  // The running fibre's stack goes on below this frame, where nothing of a kernel lies.
  const auto* const end = &fibre == current_ ? static_cast<const char*>(__builtin_frame_address(0))
                                             : static_cast<const char*>(fibre.stack_pointer);
  return at >= end;
}

void Machine::pause() {
  ready_.push_back(current_);
  switch_away();
}

void Machine::later(std::function<void()> operation) {
  if (options_.timing == Timing::kEarly) return operation();
  engine_.push_back(std::move(operation));
}

// One of the fibres that can go on. A third of all seeds take any, a third prefer warps by a
// priority that changes now and then, a third go around.
Fibre* Machine::next() {
  const size_t count = ready_.size();
  size_t chosen = 0;
  const auto mode = options_.seed / 3 % 3;
  if (mode == 0 || random(16) == 0) {
    chosen = random(static_cast<uint32_t>(count));
  } else if (mode == 1) {
    if (random(256) == 0) {
      priorities_[random(static_cast<uint32_t>(priorities_.size()))] =
          static_cast<uint32_t>(random_());
    }
    uint32_t best = 0;
    const size_t looked = std::min<size_t>(count, 64);
    const size_t offset = random(static_cast<uint32_t>(count));
    for (size_t i = 0; i < looked; ++i) {
      const size_t at = (offset + i) % count;
      const uint32_t priority = priorities_[static_cast<size_t>(ready_[at]->warp())];
      if (priority >= best) {
        best = priority;
        chosen = at;
      }
    }
  } else {
    chosen = count - 1;
  }
  Fibre* const fibre = ready_[chosen];
  ready_[chosen] = ready_.back();
  ready_.pop_back();
  return fibre;
}

void Machine::schedule() {
  uint64_t switches = 0;
  while (done_ < fibres_.size()) {
    const bool idle = ready_.empty();
    if (!engine_.empty() && (idle || (options_.timing == Timing::kAny && random(8) == 0))) {
      const size_t at = random(static_cast<uint32_t>(engine_.size()));
      const std::function<void()> operation = std::move(engine_[at]);
      engine_[at] = std::move(engine_.back());
      engine_.pop_back();
      current_ = nullptr;
      progress();
      operation();
      continue;
    }
    if (idle) {
      stand_still();
      continue;
    }
    current_ = next();
    threadIdx = current_->place.thread;
    if (++switches > kMostSwitches) fail("the block does not end");
    emulated_switch(&scheduler_, current_->stack_pointer);
    if (!error_.empty()) {
      global_counts.switches += switches;
      throw Error(error_);
    }
  }
  global_counts.switches += switches;
  current_ = nullptr;
}

// Nothing can go on. Threads that only try a barrier may give up; otherwise the block is stuck.
void Machine::stand_still() {
  bool woken = false;
  if (progress_ != last_progress_) {
    for (Fibre* fibre : fibres_) {
      if (fibre->state == Fibre::State::kBlocked && fibre->may_give_up) {
        fibre->gave_up = true;
        wake(*fibre);
        woken = true;
      }
    }
    last_progress_ = progress_;
    if (woken) return;
  }
  current_ = nullptr;
  std::map<std::string, std::vector<int>> groups;
  for (const Fibre* fibre : fibres_) {
    if (fibre->state != Fibre::State::kBlocked) continue;
    std::ostringstream text;
    text << fibre->waits_for;
    if (fibre->detail != 0) text << " " << fibre->detail;
    text << ", latest PTX at " << fibre->at;
    groups[text.str()].push_back(fibre->index);
  }
  const Place& place = fibres_.front()->place;
  std::ostringstream text;
  text << "deadlock in block (" << place.block.x << ", " << place.block.y << ", " << place.block.z
       << "), where " << done_ << " of " << fibres_.size() << " threads have ended:";
  for (const auto& [what, who] : groups) {
    text << "\n  threads ";
    for (size_t i = 0; i < who.size(); ++i) {
      if (i > 0 && who[i] == who[i - 1] + 1) {
        if (i + 1 == who.size() || who[i + 1] != who[i] + 1) text << "-" << who[i];
      } else {
        text << (i > 0 ? "," : "") << who[i];
      }
    }
    text << " wait for " << what;
  }
  for (const auto& [address, barrier] : barriers_) {
    text << "\n  mbarrier at " << address << ": phase " << barrier.phase << ", " << barrier.pending
         << " of " << barrier.expected << " arrivals and " << barrier.bytes << " bytes to come";
  }
  throw Error(text.str());
}

void Machine::run_block(const Grid& grid, uint3 block, const std::function<void()>& body) {
  const size_t count = size_t{grid.threads.x} * grid.threads.y * grid.threads.z;
  while (pool_.size() < count) {
    auto* fibre = new Fibre;
    char* const memory = static_cast<char*>(map_memory(kStackBytes + 4096));
    mprotect(memory, 4096, PROT_NONE);
    fibre->stack = memory + 4096;
    pool_.push_back(fibre);
  }
  fibres_.assign(pool_.begin(), pool_.begin() + static_cast<std::ptrdiff_t>(count));
  ready_.clear();
  warps_.assign((count + 31) / 32, {});
  priorities_.assign(warps_.size(), 0);
  for (uint32_t& priority : priorities_) priority = static_cast<uint32_t>(random_());
  named_.fill({});
  barriers_.clear();
  engine_.clear();
  statics_.clear();
  error_.clear();
  done_ = 0;
  body_ = &body;
  blockIdx = block;
  blockDim = grid.threads;
  gridDim = grid.blocks;
  std::memset(shared_, 0xff, kArenaBytes);
  std::memset(fenced_, 0xff, kArenaBytes);
  dynamic_bytes_ = grid.shared_bytes;
  static_end_ = kSharedBegin + (dynamic_bytes_ + 1023) / 1024 * 1024;
  for (size_t i = 0; i < count; ++i) {
    Fibre& fibre = *fibres_[i];
    char* const stack = fibre.stack;
    fibre = Fibre{};
    fibre.stack = stack;
    fibre.index = static_cast<int>(i);
    const auto at = static_cast<unsigned>(i);
    fibre.place.thread = {at % grid.threads.x, at / grid.threads.x % grid.threads.y,
                          at / grid.threads.x / grid.threads.y};
    fibre.place.block = block;
    fibre.place.block_extent = grid.threads;
    fibre.place.grid_extent = grid.blocks;
    auto* top = reinterpret_cast<void**>(stack + kStackBytes);
    *--top = nullptr;  // what fibre_main would return to
    *--top = reinterpret_cast<void*>(&fibre_main);
    for (int i = 0; i < 6; ++i) *--top = nullptr;
    fibre.stack_pointer = top;
    ready_.push_back(&fibre);
  }
  schedule();
  end_block();
}

// What must hold when all threads have ended.
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
  if (static_end_ > kSharedBegin + kMostShared) fail("a block has more than 227 KiB of shared memory");
  statics_[key] = static_cast<uint32_t>(begin);
  return shared_ + begin;
}

void launch(const Grid& grid, const std::function<void()>& body) {
  // Machines stay, with the stacks of their fibres.
  static Machine* const only = new Machine(global_options);
  const uint64_t threads = uint64_t{grid.threads.x} * grid.threads.y * grid.threads.z;
  if (threads == 0 || threads > 1024) throw Error("a block of " + std::to_string(threads) + " threads");
  const uint64_t blocks = uint64_t{grid.blocks.x} * grid.blocks.y * grid.blocks.z;
  if (blocks == 0) throw Error("a grid without blocks");
  if (grid.shared_bytes > kMostShared) throw Error("more than 227 KiB of dynamic shared memory");
  only->restart(global_options);
  running = only;
  ++global_counts.launches;
  std::vector<uint64_t> order(blocks);
  for (uint64_t i = 0; i < blocks; ++i) order[i] = i;
  for (uint64_t i = blocks; i > 1; --i) {
    std::swap(order[i - 1], order[only->random(static_cast<uint32_t>(i))]);
  }
  const FaultGuard guard;
  if (sigsetjmp(after_fault, 1) != 0) {
    std::ostringstream text;
    text << "access to address " << fault_address << ", which is outside of all memory";
    only->rethrow(text.str());
  }
  for (const uint64_t i : order) {
    ++global_counts.blocks;
    const auto x = static_cast<unsigned>(i % grid.blocks.x);
    const auto y = static_cast<unsigned>(i / grid.blocks.x % grid.blocks.y);
    const auto z = static_cast<unsigned>(i / grid.blocks.x / grid.blocks.y);
    only->run_block(grid, {x, y, z}, body);
  }
}

}  // namespace emulated
