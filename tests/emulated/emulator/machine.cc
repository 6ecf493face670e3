// Fibres and the order in which they run.
#include "emulator/machine.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "emulator/intrinsics.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace emulated {

namespace {

constexpr size_t kStackBytes = 512 * 1024;
constexpr uint64_t kMostSwitches = 400'000'000;

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
  return !open.empty() || std::any_of(committed.begin(), committed.end(),
                                      [](const auto& group) { return !group.empty(); });
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

Machine::Machine() { map_shared(); }

void Machine::restart(const Options& options, size_t number) {
  options_ = options;
  random_.seed(options.seed * 7919 + 17 + number * 104729);
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
  polled_ = true;
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

// Chooses a fibre that can go on. A third of all seeds take any, a third prefer warps by a priority
// that changes now and then, a third go around.
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

void Machine::take_turn() {
  const bool idle = ready_.empty();
  if (!engine_.empty() && (idle || (options_.timing == Timing::kAny && random(8) == 0))) {
    const size_t at = random(static_cast<uint32_t>(engine_.size()));
    const std::function<void()> operation = std::move(engine_[at]);
    engine_[at] = std::move(engine_.back());
    engine_.pop_back();
    current_ = nullptr;
    progress();
    return operation();
  }
  if (idle) return stand_still();
  current_ = next();
  threadIdx = current_->place.thread;
  ++mutable_counts().switches;
  if (++switches_ > kMostSwitches) rethrow("the block does not end");
  emulated_switch(&scheduler_, current_->stack_pointer);
  if (!error_.empty()) throw Error(error_);
}

bool Machine::run(uint64_t turns) {
  const bool alone = turns == UINT64_MAX;
  const Place& place = fibres_.front()->place;
  blockIdx = place.block;
  blockDim = place.block_extent;
  gridDim = place.grid_extent;
  polled_ = false;
  for (; done_ < fibres_.size(); --turns) {
    if (turns == 0 || (polled_ && !alone)) return false;
    take_turn();
  }
  current_ = nullptr;
  end_block();
  return true;
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

void Machine::begin_block(const Grid& grid, uint3 block, const std::function<void()>& body) {
  const size_t count = size_t{grid.threads.x} * grid.threads.y * grid.threads.z;
  while (pool_.size() < count) {
    auto* fibre = new Fibre;
    char* const memory = map_memory(kStackBytes + 4096);
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
  error_.clear();
  done_ = 0;
  switches_ = 0;
  body_ = &body;
  begin_shared(grid.shared_bytes);
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
}

}  // namespace emulated
