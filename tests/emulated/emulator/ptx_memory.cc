// Instructions that read and write memory, and those that let threads meet.
#include <algorithm>

#include "emulator/actions.h"
#include "emulator/intrinsics.h"
#include "emulator/machine.h"
#include "emulator/numbers.h"

namespace emulated {
namespace {

int bytes_of(const std::string& type) {
  return type.ends_with("x2") ? 4 : std::atoi(type.c_str() + (type.starts_with("bf") ? 2 : 1)) / 8;
}

// Returns the host's pointer to an address in shared memory or anywhere else.
char* pointer(Run& run, const Instruction& i, const Argument& argument, size_t bytes) {
  const uint64_t address = run.address(argument);
  for (const std::string& part : i.parts) {
    if (part.starts_with("shared")) {
      return machine().shared(static_cast<uint32_t>(address), bytes, bytes);
    }
  }
  if (address % bytes != 0)
    run.fail("an access of " + std::to_string(bytes) + " bytes that is not aligned");
  return reinterpret_cast<char*>(address);
}

int vector_of(const Instruction& i) {
  return i.has("v8") ? 8 : i.has("v4") ? 4 : i.has("v2") ? 2 : 1;
}

void load(Run& run, const Instruction& i) {
  const int each = bytes_of(i.parts.back());
  const int count = vector_of(i);
  if (i.has("volatile") || i.has("acquire") || i.has("relaxed")) pause();
  const char* from = pointer(run, i, i.arguments[1], static_cast<size_t>(each * count));
  const char type = i.parts.back()[0];
  for (int k = 0; k < count; ++k) {
    uint64_t value = 0;
    std::memcpy(&value, from + k * each, static_cast<size_t>(each));
    if (type == 's' && each < 8)
      value =
          static_cast<uint64_t>(static_cast<int64_t>(value << (64 - 8 * each)) >> (64 - 8 * each));
    run.set(count == 1 && i.arguments[0].parts.empty()
                ? i.arguments[0]
                : i.arguments[0].parts[static_cast<size_t>(k)],
            value);
  }
}

void store(Run& run, const Instruction& i) {
  const int each = bytes_of(i.parts.back());
  const int count = vector_of(i);
  char* to = pointer(run, i, i.arguments[0], static_cast<size_t>(each * count));
  for (int k = 0; k < count; ++k) {
    const Argument& from = i.arguments[1].parts.empty()
                               ? i.arguments[1]
                               : i.arguments[1].parts[static_cast<size_t>(k)];
    const uint64_t value = run.get(from);
    std::memcpy(to + k * each, &value, static_cast<size_t>(each));
  }
  if (i.has("release") || i.has("volatile")) machine().maybe_pause(2);
}

uint64_t combine(Run& run, const std::string& how, const std::string& type, uint64_t old,
                 uint64_t x) {
  const auto low = [](uint64_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits)); };
  const auto a = static_cast<int32_t>(old);
  const auto b = static_cast<int32_t>(x);
  if (how == "add") {
    if (type == "f32") return std::bit_cast<uint32_t>(low(old) + low(x));
    if (type == "f16x2" || type == "bf16x2") {
      const auto sum = [&](int at) -> uint64_t {
        const auto p = static_cast<uint32_t>(old >> at) & 0xffffu;
        const auto q = static_cast<uint32_t>(x >> at) & 0xffffu;
        return type[0] == 'f' ? half_bits(double{half_value(p)} + half_value(q))
                              : bfloat_bits(bfloat_value(p) + bfloat_value(q));
      };
      return sum(16) << 16 | sum(0);
    }
    if (type[0] != 'f' && type[0] != 'b') return old + x;
  }
  if (how == "inc") return static_cast<uint32_t>(old) >= static_cast<uint32_t>(x) ? 0 : old + 1;
  if (how == "exch") return x;
  if (how == "and") return old & x;
  if (how == "or") return old | x;
  if (how == "xor") return old ^ x;
  if (how == "max" || how == "min") {
    if (type == "s32") return static_cast<uint32_t>(how == "max" ? std::max(a, b) : std::min(a, b));
    if (type[0] == 'u') return how == "max" ? std::max(old, x) : std::min(old, x);
  }
  run.fail("the atomic operation " + how + " of " + type + " is not emulated");
}

void atomic(Run& run, const Instruction& i) {
  static const char* const kHows[] = {"add", "max", "min", "inc", "exch",
                                      "cas", "and", "or",  "xor"};
  const bool with_result = i.parts[0] == "atom";
  const size_t at = with_result ? 1 : 0;
  std::string how;
  for (const char* one : kHows) {
    if (i.has(one)) how = one;
  }
  const std::string& type = i.parts.back();
  const int each = bytes_of(type);
  const int count = vector_of(i);
  pause_at_atomic();
  char* const to = pointer(run, i, i.arguments[at], static_cast<size_t>(each * count));
  for (int k = 0; k < count; ++k) {
    const auto part = [&](size_t which) -> const Argument& {
      const Argument& argument = i.arguments[which];
      return argument.parts.empty() ? argument : argument.parts[static_cast<size_t>(k)];
    };
    uint64_t old = 0;
    std::memcpy(&old, to + k * each, static_cast<size_t>(each));
    const uint64_t x = run.get(part(at + 1));
    const uint64_t y =
        how == "cas" ? (old == x ? run.get(part(at + 2)) : old) : combine(run, how, type, old, x);
    std::memcpy(to + k * each, &y, static_cast<size_t>(each));
    if (with_result) run.set(part(0), old);
  }
  machine().progress();
}

void block_barrier(Run& run, const Instruction& i) {
  Machine& m = machine();
  if (i.has("warp")) return sync_warp(run.get32(i.arguments[0]));
  if (i.has("cluster")) {  // a cluster has one block here
    if (i.has("arrive")) return;
    m.sync(15, m.threads(), false);
    return;
  }
  const int barrier = static_cast<int>(run.get32(i.arguments[0]));
  const int count =
      i.arguments.size() > 1 ? static_cast<int>(run.get32(i.arguments[1])) : m.threads();
  if (i.has("red")) run.fail("bar.red is not emulated: use __syncthreads_or and its like");
  if (i.has("arrive")) return m.arrive(barrier, count);
  m.sync(barrier, count, false);
}

void elect(Run& run, const Instruction& i) {
  const uint32_t mask = run.get32(i.arguments[1]);
  const auto leader = static_cast<uint32_t>(std::countr_zero(mask));
  static const char what = 0;
  machine().meet(mask, &what, "elect.sync", nullptr, [](const auto&) {});
  const Argument& to = i.arguments[0];
  run.set(to.parts[0], leader);
  run.set(to.parts[1], static_cast<uint32_t>(machine().self().lane()) == leader ? 1 : 0);
}

void shuffle_here(Run& run, const Instruction& i) {
  const Shuffle kind = i.has("up")     ? Shuffle::kUp
                       : i.has("down") ? Shuffle::kDown
                       : i.has("bfly") ? Shuffle::kXor
                                       : Shuffle::kIndex;
  const uint32_t limits = run.get32(i.arguments[3]);
  const int width = 32 - static_cast<int>(limits >> 8 & 31u);
  const Argument& to =
      i.arguments[0].kind == Argument::Kind::kList ? i.arguments[0].parts[0] : i.arguments[0];
  run.set(to, shuffle(kind, run.get32(i.arguments[4]), run.get32(i.arguments[1]),
                      static_cast<int>(run.get32(i.arguments[2])), width));
}

void reduce_here(Run& run, const Instruction& i) {
  const bool is_signed = i.parts.back()[0] == 's';
  const Reduction kind = i.has("add")   ? Reduction::kAdd
                         : i.has("min") ? (is_signed ? Reduction::kMinSigned : Reduction::kMin)
                         : i.has("max") ? (is_signed ? Reduction::kMaxSigned : Reduction::kMax)
                         : i.has("and") ? Reduction::kAnd
                         : i.has("or")  ? Reduction::kOr
                                        : Reduction::kXor;
  run.set(i.arguments[0], reduce(kind, run.get32(i.arguments[2]), run.get32(i.arguments[1])));
}

void fence(Run&, const Instruction& i) {
  Machine& m = machine();
  if (i.parts[1] == "proxy" && i.has("async")) m.fence_async();
  if (i.parts[1] == "mbarrier_init") m.fence_barriers();
  m.maybe_pause(8);
}

void shared_barrier(Run& run, const Instruction& i) {
  Machine& m = machine();
  const std::string& how = i.parts[1];
  const auto address = [&](size_t at) {
    return static_cast<uint32_t>(run.address(i.arguments[at]));
  };
  if (how == "init") return m.init_barrier(address(0), run.get32(i.arguments[1]));
  if (how == "inval") return m.end_barrier(address(0));
  if (how == "try_wait" || how == "test_wait") {
    if (!i.has("parity")) run.fail("waits by a state of the barrier are not emulated");
    const bool ended = m.wait_barrier(address(1), run.get32(i.arguments[2]), how == "try_wait");
    return run.set(i.arguments[0], ended ? 1 : 0);
  }
  if (how == "expect_tx") {
    m.expect_bytes(address(0), run.get32(i.arguments[1]));
    return;
  }
  if (how == "complete_tx") return m.complete_bytes(address(0), run.get32(i.arguments[1]));
  if (how == "arrive") {
    const bool sink = i.arguments[0].kind == Argument::Kind::kNone;
    if (!sink && i.arguments[0].kind == Argument::Kind::kAddress)
      run.fail("mbarrier.arrive without a result");
    const bool bytes = i.has("expect_tx");
    const int64_t count = !bytes && i.arguments.size() > 2 ? run.get32(i.arguments[2]) : 1;
    m.arrive_barrier(address(1), count, bytes ? run.get32(i.arguments[2]) : 0);
    run.set(i.arguments[0], 0);
    return m.maybe_pause(2);
  }
  run.fail("mbarrier." + how + " is not emulated");
}

}  // namespace

Action memory_action(const Instruction& instruction) {
  const std::string& name = instruction.parts[0];
  if (name == "ld" || name == "ldu") return load;
  if (name == "st" && !instruction.has("async")) return store;
  if (name == "atom" || (name == "red" && !instruction.has("async"))) return atomic;
  return nullptr;
}

Action barrier_action(const Instruction& instruction) {
  const std::string& name = instruction.parts[0];
  if (name == "bar" || name == "barrier") return block_barrier;
  if (name == "elect") return elect;
  if (name == "shfl") return shuffle_here;
  if (name == "redux") return reduce_here;
  if (name == "fence") return fence;
  if (name == "mbarrier") return shared_barrier;
  if (name == "activemask") {
    return [](Run& run, const Instruction& i) { run.set(i.arguments[0], active_mask()); };
  }
  return nullptr;
}

}  // namespace emulated
