// Rounds of an ring on a fake of the CUDA runtime, whose stream works only while it is waited
// for, as late as it may, and whose calls fail when they are told to. Runs without a GPU.
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "cuda/device/host_device_ring.h"
#include "cuda/device/small_copy.h"
#include "packhorse/error.h"
#include "test.h"

using namespace packhorse;

namespace {

using Work = std::function<void()>;

struct FakeStream {
  std::deque<Work> asked;
  size_t done = 0;      // how many of all that were asked for are done
  std::string failing;  // the call that fails, once
  std::set<void*> alive;

  void ask(Work work) { asked.push_back(std::move(work)); }
  void work_until(size_t count) {
    for (; done < count; ++done) {
      asked.front()();
      asked.pop_front();
    }
  }
  size_t num_asked() const { return done + asked.size(); }
  cudaError_t call(const char* name) {
    if (failing != name) return cudaSuccess;
    failing.clear();
    return cudaErrorUnknown;
  }
};

FakeStream stream;

}  // namespace

extern "C" {

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* made, unsigned) {
  auto* const position = new size_t(0);
  stream.alive.insert(position);
  *made = reinterpret_cast<cudaEvent_t>(position);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  auto* const position = reinterpret_cast<size_t*>(event);
  stream.alive.erase(position);
  delete position;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  if (const cudaError_t error = stream.call("cudaEventRecord")) return error;
  *reinterpret_cast<size_t*>(event) = stream.num_asked();
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  stream.work_until(*reinterpret_cast<size_t*>(event));
  return stream.call("cudaEventSynchronize");
}
cudaError_t cudaStreamSynchronize(cudaStream_t) {
  stream.work_until(stream.num_asked());
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** made, size_t bytes, unsigned) {
  if (const cudaError_t error = stream.call("cudaHostAlloc")) return error;
  stream.alive.insert(*made = std::calloc(bytes, 1));
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* made) {
  stream.alive.erase(made);
  std::free(made);
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

// Functions that must be linked, but that these tests never call.
cudaError_t cudaSetDevice(int) { return cudaErrorNoDevice; }
cudaError_t cudaMalloc(void**, size_t) { return cudaErrorNoDevice; }
cudaError_t cudaFree(void*) { return cudaErrorNoDevice; }
cudaError_t cudaMemGetInfo(size_t*, size_t*) { return cudaErrorNoDevice; }
cudaError_t cudaMemcpyAsync(void*, const void*, size_t, cudaMemcpyKind, cudaStream_t) {
  return cudaErrorNoDevice;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t) { return "a name"; }
const char* cudaGetErrorString(cudaError_t) { return "a reason"; }

}  // extern "C"

namespace packhorse::cuda {

void copy_in_stream(const SmallCopy& first, const SmallCopy& second, cudaStream_t) {
  stream.ask([=] {
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
    if (stream.call("an operator")) throw RuntimeError("an operator");
    device.expected.push_back(number);
    stream.ask([this] { device.compute(); });
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
    if (random() % 4 == 0) stream.failing = failing[random() % 2];
    try {
      room.begin(number, count);
      under_way.emplace_back(number, count);
    } catch (const RuntimeError&) {
      ++failed;
    }
    stream.failing.clear();
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
  const size_t before = stream.num_asked();
  room.begin(1, 5);
  room.begin(2, 6);
  const size_t launches = 4;  // two copies and two operators
  CHECK(stream.num_asked() - before == launches);
  room.end(1, 5);
  CHECK(stream.num_asked() - before == launches);
  room.end(2, 6);
  CHECK(stream.num_asked() - before == launches + 1);
}

TEST(an_exchange_goes_on_after_a_round_that_failed) {
  Room room;
  for (int32_t number = 1; number < 100; number += 3) {
    room.begin(number, 5);
    room.begin(number + 1, 6);
    stream.failing = "cudaEventSynchronize";
    CHECK_THROWS_AS(RuntimeError, room.exchange->wait(), "cudaEventSynchronize");
    room.exchange->drop();
    CHECK(stream.asked.empty());
    room.begin(number + 2, 7);
    room.end(number + 2, 7);
  }
}

TEST(an_exchange_leaves_nothing) {
  CHECK(stream.alive.empty());
  stream.failing = "cudaHostAlloc";
  CHECK_THROWS_AS(RuntimeError, Room(), "cudaHostAlloc");
  CHECK(stream.alive.empty());
  {
    Room room;
    room.begin(1, 2);
    CHECK(!stream.asked.empty());
  }
  CHECK(stream.asked.empty());  // nothing is written to memory that is gone
  CHECK(stream.alive.empty());
}
