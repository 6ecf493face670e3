#include "core/arena.h"

#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>

#include "packhorse/error.h"
#include "test.h"

namespace packhorse {
namespace {

struct Memory {
  explicit Memory(size_t bytes)
      : data(std::aligned_alloc(Arena::kAlignment,
                                (bytes / Arena::kAlignment + 1) * Arena::kAlignment)) {}
  ~Memory() { std::free(data); }
  void* data;
};

/// Buffers as a model takes them: some that live long, and two phases that share scratch.
struct Buffers {
  void* ids;
  float* hidden;
  void* first;
  void* second;
  void* none;
};

Buffers lay_out(Arena& arena) {
  Buffers buffers{};
  buffers.ids = arena.take("ids", 100);
  buffers.hidden = arena.take_array<float>("hidden", 300);
  {
    const Arena::Scope scope(arena);
    buffers.first = arena.take("first", 1000);
  }
  {
    const Arena::Scope scope(arena);
    buffers.second = arena.take("second", 2000);
    buffers.none = arena.take("none", 0);
  }
  return buffers;
}

TEST(arena_counts_what_it_carves) {
  Arena count;
  CHECK(lay_out(count).hidden == nullptr);
  const PlannedAllocation plan = count.plan();
  // 100 rounds up to 256 and 1200 to 1280. The longer of the two scratches, 2000, rounds up to 2048
  // and ends the allocation; the empty buffer after it starts at this aligned end.
  CHECK(plan.bytes == 256 + 1280 + 2048);
  CHECK(plan.buffers.size() == 5);
  CHECK(plan.buffers[1].name == "hidden");
  CHECK(plan.buffers[1].offset == 256);
  CHECK(plan.buffers[1].bytes == 1200);

  const Memory memory(plan.bytes);
  Arena carve(memory.data, plan);
  const Buffers buffers = lay_out(carve);
  char* base = static_cast<char*>(memory.data);
  CHECK(buffers.ids == base);
  CHECK(reinterpret_cast<char*>(buffers.hidden) == base + 256);
  CHECK(buffers.first == base + 1536);
  CHECK(buffers.second == buffers.first);
  CHECK(carve.plan().bytes == plan.bytes);
}

TEST(arena_peak_is_exact) {
  Arena arena;
  arena.take("a", 1);
  arena.take("b", 1);
  {
    const Arena::Scope scope(arena);
    arena.take("high", 1000);
  }
  arena.take("low", 10);
  CHECK(arena.plan().bytes == 2 * Arena::kAlignment + 1000);
}

TEST(arena_peak_is_not_rounded_up) {
  Arena arena;
  arena.take("a", 1);
  arena.take("b", 1);
  CHECK(arena.plan().bytes == Arena::kAlignment + 1);
}

TEST(arena_empty_plan) {
  const Arena count;
  CHECK(count.plan().bytes == 0);
  Arena carve(nullptr, count.plan());
  CHECK_THROWS_AS(RuntimeError, carve.take("late", 0), "'late' was not planned");
}

TEST(arena_limit_names_the_buffer) {
  Arena arena(1000);
  arena.take("small", 500);
  arena.take("exact", 1000 - 512);
  Arena other(1000);
  other.take("small", 500);
  CHECK_THROWS_AS(OutOfMemory, other.take("scores", 489), "'scores' of 489 bytes");
  CHECK_THROWS_AS(OutOfMemory, other.take("scores", 489), "1001 bytes; the limit leaves 1000");
  CHECK(other.plan().buffers.size() == 1);
}

TEST(arena_refuses_overflow) {
  Arena arena;
  arena.take("one", 1);
  CHECK_THROWS_AS(OutOfMemory, arena.take("huge", std::numeric_limits<size_t>::max() - 8),
                  "'huge'");
  CHECK_THROWS_AS(OutOfMemory,
                  arena.take_array<double>("many", std::numeric_limits<size_t>::max() / 4),
                  "'many'");
}

TEST(arena_notices_departure_from_the_plan) {
  Arena count;
  count.take("a", 64);
  count.take("b", 64);
  const Memory memory(count.plan().bytes);
  const auto carve = [&] { return Arena(memory.data, count.plan()); };
  CHECK_THROWS_AS(RuntimeError, carve().take("b", 64), "found 'b'");
  CHECK_THROWS_AS(RuntimeError, carve().take("a", 65), "65 bytes at 0; planned 'a', 64");
  CHECK_THROWS_AS(
      RuntimeError,
      [&] {
        Arena arena = carve();
        {
          const Arena::Scope scope(arena);
          arena.take("a", 64);
        }
        arena.take("b", 64);
      }(),
      "64 bytes at 0; planned 'b', 64 bytes at 256");
}

TEST(arena_wants_aligned_memory) {
  const Memory memory(1024);
  CHECK_THROWS_WITH(Arena(static_cast<char*>(memory.data) + 64, {}), "multiple of 256");
}

}  // namespace
}  // namespace packhorse
