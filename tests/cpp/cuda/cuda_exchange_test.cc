// Rounds of a ring between host and device, on a stream that works as late as it may. Runs without
// a GPU.
#include <cstring>
#include <deque>
#include <memory>
#include <random>

#include "cuda/device/host_device_ring.h"
#include "cuda/device/small_copy.h"
#include "cuda/late_stream.h"
#include "packhorse/error.h"
#include "test.h"

using namespace packhorse;

namespace packhorse::cuda {

void copy_in_stream(const SmallCopy& first, const SmallCopy& second, cudaStream_t) {
  late_stream.ask([=] {
    for (const SmallCopy& copy : {first, second}) {
      if (copy.bytes > 0) std::memcpy(copy.to, copy.from, copy.bytes);
    }
  });
}

}  // namespace packhorse::cuda

namespace {

constexpr size_t kNumbers = 64;

// A device whose operator says which number it has found first and last of its inputs.
struct Device {
  // A round's inputs are `count` times its number.
  struct Inputs {
    int32_t count = 0;
    int32_t numbers[kNumbers - 1] = {};
  };
  struct Results {
    int32_t count, first, last;
  };
  Inputs inputs;
  Results results = {};
  std::deque<int32_t> expected;  // by the operator, in the order of launches

  void compute() {
    results = {inputs.count, inputs.numbers[0], inputs.numbers[inputs.count - 1]};
    CHECK(!expected.empty() && results.first == expected.front());
    expected.pop_front();
  }
};

struct Room {
  Device device;
  std::unique_ptr<HostDeviceRing> ring = cuda::make_ring(
      0, nullptr, &device.inputs, sizeof(Device::Inputs), &device.results, sizeof(Device::Results));

  void begin(int32_t number, int32_t count) {
    auto& inputs = *static_cast<Device::Inputs*>(ring->acquire());
    inputs.count = count;
    for (int32_t i = 0; i < count; ++i) inputs.numbers[i] = number;
    ring->send(sizeof(int32_t) * (1 + static_cast<size_t>(count)));
    if (late_stream.call("an operator")) throw RuntimeError("an operator");
    device.expected.push_back(number);
    late_stream.ask([this] { device.compute(); });
    ring->fetch(sizeof(Device::Results));
  }
  void end(int32_t number, int32_t count) {
    const auto& results = *static_cast<const Device::Results*>(ring->wait());
    CHECK(results.count == count && results.first == number && results.last == number);
  }
};

}  // namespace

TEST(rounds_have_their_own_inputs_and_results) {
  std::mt19937 random(1);
  Room room;
  std::deque<std::pair<int32_t, int32_t>> under_way;
  int failed = 0;
  for (int32_t number = 1; number <= 5000; ++number) {
    const auto count = static_cast<int32_t>(1 + random() % (kNumbers - 1));
    // Fails in the middle of the round, or when all of it has been asked for.
    const char* const failing[] = {"an operator", "cudaEventRecord"};
    if (random() % 4 == 0) late_stream.failing = failing[random() % 2];
    try {
      room.begin(number, count);
      under_way.emplace_back(number, count);
    } catch (const RuntimeError&) {
      ++failed;
    }
    late_stream.failing.clear();
    while (under_way.size() == HostDeviceRing::kSlots ||
           (!under_way.empty() && random() % 3 == 0)) {
      room.end(under_way.front().first, under_way.front().second);
      under_way.pop_front();
    }
  }
  CHECK(failed > 500);
}

TEST(results_are_copied_with_the_inputs_of_the_next_round) {
  Room room;
  const size_t before = late_stream.num_asked();
  room.begin(1, 5);
  room.begin(2, 6);
  const size_t launches = 4;  // two copies and two operators
  CHECK(late_stream.num_asked() - before == launches);
  room.end(1, 5);
  CHECK(late_stream.num_asked() - before == launches);
  room.end(2, 6);
  CHECK(late_stream.num_asked() - before == launches + 1);
}

TEST(an_exchange_goes_on_after_a_round_that_failed) {
  Room room;
  for (int32_t number = 1; number < 100; number += 3) {
    room.begin(number, 5);
    room.begin(number + 1, 6);
    late_stream.failing = "cudaEventSynchronize";
    CHECK_THROWS_AS(RuntimeError, room.ring->wait(), "cudaEventSynchronize");
    room.ring->drop();
    CHECK(late_stream.asked.empty());
    room.begin(number + 2, 7);
    room.end(number + 2, 7);
  }
}

TEST(an_exchange_leaves_nothing) {
  CHECK(late_stream.events.empty() && late_stream.page_locked.empty());
  late_stream.failing = "cudaHostAlloc";
  CHECK_THROWS_AS(RuntimeError, Room(), "cudaHostAlloc");
  CHECK(late_stream.events.empty() && late_stream.page_locked.empty());
  {
    Room room;
    room.begin(1, 2);
    CHECK(!late_stream.asked.empty());
  }
  CHECK(late_stream.asked.empty());  // nothing is written to memory that is gone
  CHECK(late_stream.events.empty() && late_stream.page_locked.empty());
}
