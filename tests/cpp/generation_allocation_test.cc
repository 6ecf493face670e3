// The engine allocates nothing from step to step. All allocations of the process are counted.
#include <array>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "generation/generation_session.h"
#include "test.h"

namespace {
std::atomic<int64_t> allocations = 0;
}

// A sanitizer has operators of its own, and its builds count nothing.
#ifndef __SANITIZE_ADDRESS__
void* operator new(size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
#endif

using namespace packhorse;

namespace {

constexpr size_t kSteps = 700;

// Notes at each step how many allocations there have been.
class CountingRunner final : public StepRunner {
 public:
  const RunnerLimits& limits() const override { return limits_; }
  const GenerationMemoryPlan& memory_plan() const override { return plan_; }
  void run(const Step& step) override {
    // The first step ends when all requests are there, so that they run together.
    while (!all_submitted) std::this_thread::yield();
    if (steps < kSteps) counts[steps] = allocations;
    ++steps;
    for (const StepSequence& sequence : step.sequences) {
      if (!sequence.sample) continue;
      *sequence.chosen = {int32_t(sequence.kv_len() % 40), -1};
      for (TokenLogprob& top : sequence.top) top = *sequence.chosen;
    }
  }

  std::atomic<bool> all_submitted = false;
  size_t steps = 0;
  std::array<int64_t, kSteps> counts = {};

 private:
  const RunnerLimits limits_{40, 2000, 24, 100, 4};
  const GenerationMemoryPlan plan_;
};

}  // namespace

TEST(generation_allocates_nothing_from_step_to_step) {
  auto owned = std::make_unique<CountingRunner>();
  CountingRunner& runner = *owned;
  GenerationOptions options;
  options.max_tokens = 100;
  options.max_sequences = 4;
  const auto session = make_generation_session(std::move(owned), options);
  Sampling sampling;
  sampling.max_new_tokens = 500;
  sampling.logprobs = 3;
  // Prompts that are cut, pages that fill up, and preemptions: 3 times 700 tokens, 24 pages.
  std::vector<std::shared_ptr<GenerationRequest>> requests;
  for (const int32_t token : {1, 2, 3}) {
    requests.push_back(session->submit(std::vector<int32_t>(200, token), sampling));
  }
  runner.all_submitted = true;
  for (const auto& request : requests) request->wait();
  CHECK(session->stats().preemptions > 0);
  // The last steps are of the last sequence alone; in the first ones the sequences start.
  CHECK(runner.steps > 520);
  CHECK(runner.counts[480] == runner.counts[20]);
}
