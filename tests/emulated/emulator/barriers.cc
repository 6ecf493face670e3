// Meeting points of threads: lanes of a warp, barriers of the block, and mbarriers.
#include "emulator/intrinsics.h"
#include "emulator/machine.h"

namespace emulated {

void Machine::meet(uint32_t mask, const void* what, const char* name, void* data,
                   const std::function<void(const std::array<void*, 32>&)>& run) {
  Fibre& fibre = self();
  Warp& warp = this->warp();
  const uint32_t bit = 1u << fibre.lane();
  const int lanes = std::min(32, threads() - fibre.warp() * 32);
  if (lanes < 32) mask &= (1u << lanes) - 1;
  if ((mask & bit) == 0)
    fail(std::string(name) + ": the mask does not name the lane that calls it");
  for (int lane = 0; lane < lanes; ++lane) {
    if ((mask >> lane & 1) != 0 &&
        this->fibre(fibre.warp() * 32 + lane).state == Fibre::State::kDone) {
      fail(std::string(name) + ": lane " + std::to_string(lane) + " of the mask has ended");
    }
  }
  size_t at = 0;
  while (at < warp.meetings.size() && (warp.meetings[at].mask & bit) == 0) ++at;
  if (at == warp.meetings.size()) {
    warp.meetings.push_back({mask, 0, what, name, {}, ++meetings_});
  }
  Meeting& meeting = warp.meetings[at];
  if (meeting.mask != mask || meeting.what != what) {
    fail(std::string("lanes of a warp meet at different instructions or masks: ") + meeting.name +
         " and " + name);
  }
  meeting.data[static_cast<size_t>(fibre.lane())] = data;
  meeting.arrived |= bit;
  if (meeting.arrived != mask) return wait(name);
  const std::array<void*, 32> all = meeting.data;
  warp.meetings.erase(warp.meetings.begin() + static_cast<std::ptrdiff_t>(at));
  run(all);
  progress();
  for (int lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1) != 0 && lane != fibre.lane()) {
      wake(this->fibre(fibre.warp() * 32 + lane));
    }
  }
  pause();
}

namespace {

void check_barrier(Machine& machine, int barrier, int count) {
  if (barrier < 0 || barrier > 15) {
    machine.fail("barrier " + std::to_string(barrier) + " of 0 to 15");
  }
  if (count <= 0 || (count % 32 != 0 && count != machine.threads()) || count > machine.threads()) {
    machine.fail("barrier " + std::to_string(barrier) + " of " + std::to_string(count) +
                 " threads, in a block of " + std::to_string(machine.threads()));
  }
}

// Counts the running thread; true where it was the last.
bool come(Machine& machine, NamedBarrier& state, int barrier, int count, bool value) {
  check_barrier(machine, barrier, count);
  if (state.arrived == 0) {
    state.expected = count;
    state.who.assign(static_cast<size_t>(machine.threads()), false);
    state.with_value = 0;
  }
  if (state.expected != count) {
    machine.fail("threads come to barrier " + std::to_string(barrier) + " for " +
                 std::to_string(state.expected) + " and for " + std::to_string(count) + " threads");
  }
  const auto who = static_cast<size_t>(machine.self().index);
  if (state.who[who]) {
    machine.fail("a thread arrives twice at barrier " + std::to_string(barrier) +
                 " before all others have come");
  }
  state.who[who] = true;
  state.with_value += value ? 1 : 0;
  if (++state.arrived < count) return false;
  state.arrived = 0;
  state.last_with_value = state.with_value;
  machine.progress();
  for (const int index : state.waiting) machine.wake(machine.fibre(index));
  state.waiting.clear();
  return true;
}

}  // namespace

int Machine::sync(int barrier, int count, bool value) {
  NamedBarrier& state = named_[static_cast<size_t>(barrier & 15)];
  if (come(*this, state, barrier, count, value)) {
    pause();
  } else {
    state.waiting.push_back(self().index);
    wait("barrier", static_cast<uint64_t>(barrier));
  }
  return state.last_with_value;
}

void Machine::arrive(int barrier, int count) {
  come(*this, named_[static_cast<size_t>(barrier & 15)], barrier, count, false);
  maybe_pause(2);
}

void Machine::init_barrier(uint32_t address, uint32_t count) {
  char* const at = shared(address, 8, 8);
  if (count == 0 || count > (1u << 20) - 1)
    fail("mbarrier.init with a count of " + std::to_string(count));
  SharedBarrier& barrier = barriers_[address];
  if (barrier.cookie != 0 && barrier.phase == 0 && barrier.pending != barrier.expected) {
    fail("mbarrier.init of an mbarrier that is in use");
  }
  barrier = {.cookie = 0x6d62617272000000u + (++cookies_ << 32) + address,
             .expected = count,
             .pending = count};
  std::memcpy(at, &barrier.cookie, 8);
}

void Machine::end_barrier(uint32_t address) {
  barrier(address);
  barriers_.erase(address);
}

SharedBarrier& Machine::barrier(uint32_t address) {
  const char* const at = shared(address, 8, 8);
  const auto found = barriers_.find(address);
  uint64_t cookie = 0;
  std::memcpy(&cookie, at, 8);
  if (found == barriers_.end()) {
    fail("the mbarrier at shared address " + std::to_string(address) + " is not initialised");
  }
  if (cookie != found->second.cookie) {
    fail("the mbarrier at shared address " + std::to_string(address) + " was overwritten");
  }
  return found->second;
}

void Machine::check_phase(SharedBarrier& barrier, uint32_t address) {
  if (barrier.pending != 0 || barrier.bytes != 0) return;
  ++barrier.phase;
  barrier.pending = barrier.expected;
  progress();
  for (Fibre* fibre : fibres_) {
    if (fibre->state == Fibre::State::kBlocked && fibre->detail == address && fibre->may_give_up) {
      wake(*fibre);
    }
  }
}

void Machine::expect_bytes(uint32_t address, int64_t bytes) { barrier(address).bytes += bytes; }

void Machine::arrive_barrier(uint32_t address, int64_t count, int64_t bytes) {
  SharedBarrier& state = barrier(address);
  state.bytes += bytes;
  state.pending -= count;
  if (state.pending < 0) {
    fail("more arrivals than the " + std::to_string(state.expected) + " of the mbarrier at " +
         std::to_string(address));
  }
  check_phase(state, address);
}

void Machine::complete_bytes(uint32_t address, int64_t bytes) {
  SharedBarrier& state = barrier(address);
  state.bytes -= bytes;
  if (state.bytes < -((1 << 20) - 1)) fail("the transaction count of an mbarrier is out of range");
  check_phase(state, address);
}

bool Machine::wait_barrier(uint32_t address, uint32_t parity, bool may_wait) {
  if (parity > 1) fail("mbarrier: a parity of " + std::to_string(parity));
  const auto ended = [&] { return (barrier(address).phase & 1) != parity; };
  Fibre& fibre = self();
  maybe_pause(4);
  // A try may end before the phase does: once for each phase, of all lanes of a warp or of none.
  // Tests do so at random. Otherwise both wait, so that it is noticed where nothing comes.
  const uint64_t phase = barrier(address).phase << 20 | address;
  const uint64_t coin =
      (options_.seed + phase * 31 + static_cast<uint64_t>(fibre.warp())) * 0x9e3779b97f4a7c15u;
  const bool early = may_wait ? fibre.tried != phase && coin >> 62 == 0 : random(2) == 0;
  if (!ended() && early) {
    fibre.tried = phase;
    poll();
    if (!ended()) return false;
    pass_together();
    return true;
  }
  while (!ended()) {
    fibre.may_give_up = true;
    fibre.gave_up = false;
    wait("mbarrier", address);
    fibre.may_give_up = false;
    if (fibre.gave_up) return false;
  }
  pass_together();
  return true;
}

// The built-in functions of intrinsics.h.

uint32_t active_mask() {
  Machine& m = machine();
  uint32_t mask = 0;
  for (int lane = 0; lane < 32; ++lane) {
    const int index = m.self().warp() * 32 + lane;
    if (index < m.threads() && m.fibre(index).state != Fibre::State::kDone) mask |= 1u << lane;
  }
  return mask;
}

void sync_warp(uint32_t mask) {
  static const char what = 0;
  machine().meet(mask, &what, "__syncwarp", nullptr, [](const auto&) {});
}

int sync_block(bool value) { return machine().sync(0, machine().threads(), value); }
void pause() { machine().poll(); }
void trap() { machine().fail("trap"); }
uint32_t shared_address(const void* pointer) { return machine().shared_address(pointer); }
void* shared_pointer(uint32_t address) { return machine().shared(address, 1, 1); }
void pause_at_atomic() { machine().maybe_pause(4); }
void* dynamic_shared(size_t alignment) { return machine().dynamic_shared(alignment); }
void* static_shared(const void* key, size_t bytes, size_t alignment) {
  return machine().static_shared(key, bytes, alignment);
}

uint64_t shuffle(Shuffle kind, uint32_t mask, uint64_t value, int lane, int width) {
  struct Lane {
    uint64_t value, result;
    Shuffle kind;
    int lane, width;
  };
  static const char whats[4] = {};
  static const char* const kNames[] = {"__shfl_sync", "__shfl_up_sync", "__shfl_down_sync",
                                       "__shfl_xor_sync"};
  Lane mine{value, value, kind, lane, width};
  const auto which = static_cast<size_t>(kind);
  machine().meet(mask, &whats[which], kNames[which], &mine, [&](const std::array<void*, 32>& all) {
    for (int i = 0; i < 32; ++i) {
      auto* const to = static_cast<Lane*>(all[static_cast<size_t>(i)]);
      if (to == nullptr) continue;
      const int begin = i / to->width * to->width;
      int from = i;
      switch (kind) {
        case Shuffle::kIndex:
          from = begin + (to->lane & (to->width - 1));
          break;
        case Shuffle::kUp:
          from = i - to->lane < begin ? i : i - to->lane;
          break;
        case Shuffle::kDown:
          from = i + to->lane >= begin + to->width ? i : i + to->lane;
          break;
        case Shuffle::kXor:
          from = (i ^ to->lane) >= begin + to->width ? i : i ^ to->lane;
          break;
      }
      const auto* const source = static_cast<const Lane*>(all[static_cast<size_t>(from)]);
      if (source == nullptr) machine().fail("a shuffle reads from a lane that is not in its mask");
      to->result = source->value;
    }
  });
  return mine.result;
}

namespace {

struct Vote {
  uint64_t value;
  uint32_t result;
};

template <class F>
uint32_t vote(const char* name, const void* what, uint32_t mask, uint64_t value, F result) {
  Vote mine{value, 0};
  machine().meet(mask, what, name, &mine, [&](const std::array<void*, 32>& all) {
    for (void* to : all) {
      if (to != nullptr) static_cast<Vote*>(to)->result = result(all, *static_cast<Vote*>(to));
    }
  });
  return mine.result;
}

const char kVotes[3] = {};

}  // namespace

uint32_t ballot(uint32_t mask, bool value) {
  return vote("a vote of a warp", &kVotes[0], mask, value ? 1 : 0,
              [](const auto& all, const Vote&) {
                uint32_t bits = 0;
                for (size_t i = 0; i < 32; ++i) {
                  if (all[i] != nullptr && static_cast<const Vote*>(all[i])->value != 0)
                    bits |= 1u << i;
                }
                return bits;
              });
}

uint32_t match_any(uint32_t mask, uint64_t value) {
  return vote("__match_any_sync", &kVotes[1], mask, value, [](const auto& all, const Vote& to) {
    uint32_t bits = 0;
    for (size_t i = 0; i < 32; ++i) {
      if (all[i] != nullptr && static_cast<const Vote*>(all[i])->value == to.value) bits |= 1u << i;
    }
    return bits;
  });
}

uint32_t reduce(Reduction kind, uint32_t mask, uint32_t value) {
  return vote("a reduction of a warp", &kVotes[2], mask, value,
              [kind](const auto& all, const Vote&) {
                bool first = true;
                uint32_t result = 0;
                for (void* lane : all) {
                  if (lane == nullptr) continue;
                  const auto x = static_cast<uint32_t>(static_cast<const Vote*>(lane)->value);
                  const auto a = static_cast<int32_t>(result);
                  const auto b = static_cast<int32_t>(x);
                  if (first) {
                    result = x;
                  } else {
                    switch (kind) {
                      case Reduction::kAdd:
                        result += x;
                        break;
                      case Reduction::kMin:
                        result = std::min(result, x);
                        break;
                      case Reduction::kMax:
                        result = std::max(result, x);
                        break;
                      case Reduction::kMinSigned:
                        result = static_cast<uint32_t>(std::min(a, b));
                        break;
                      case Reduction::kMaxSigned:
                        result = static_cast<uint32_t>(std::max(a, b));
                        break;
                      case Reduction::kAnd:
                        result &= x;
                        break;
                      case Reduction::kOr:
                        result |= x;
                        break;
                      case Reduction::kXor:
                        result ^= x;
                        break;
                    }
                  }
                  first = false;
                }
                return result;
              });
}

}  // namespace emulated
