// Measures what the host does for each step of single tokens without a device: the engine, the
// inputs of the step and the delivery of its tokens, with a runner whose steps compute nothing.
//
//   cmake --build build/wheel --target generation_host   # where make test-cpp has configured it
//   taskset -c 1 build/wheel/tests/cpp/generation_host   # [REQUESTS [NEW_TOKENS [PROMPT_TOKENS
//   [BEAMS]]]] valgrind --tool=callgrind build/wheel/tests/cpp/generation_host 64 2000 8 1 engine
//
// With the word "engine" or "inputs" behind the numbers only that is measured: without inputs of
// steps, or with them. valgrind counts instructions where the machine has no counters.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/arena.h"
#include "generation/engine/engine.h"
#include "generation/engine/job.h"
#include "generation/runner/step_inputs.h"
#include "generation/sampling/sampler.h"
#include "ops/backend.h"

using namespace packhorse;

namespace {

constexpr int64_t kContext = 4096;
constexpr int64_t kVocabulary = 32000;

RunnerLimits limits_for(int64_t requests) {
  return {.vocab_size = kVocabulary,
          .max_context = kContext,
          .num_pages = (requests + 1) * kContext / kPageTokens,
          .max_tokens = 2048,
          .max_sequences = std::max<int64_t>(requests, 64),
          .max_adapters = 0,
          .max_drafts = 0,
          .max_chunk = 640};
}

/// Steps are over when they are launched, and choose token 0. Beams are offered random tokens.
class IdleRunner : public StepRunner {
 public:
  explicit IdleRunner(const RunnerLimits& limits) : limits_(limits) {}
  const RunnerLimits& limits() const override { return limits_; }
  const GenerationMemoryPlan& memory_plan() const override { return plan_; }
  bool overlaps() const override { return true; }
  void launch(const Step& step) override { offer(step); }

 protected:
  void offer(const Step& step) {
    for (const SequenceSlice& sequence : step.sequences) {
      float logprob = 0;
      for (TokenLogprob& candidate : sequence.top) {
        logprob -= static_cast<float>(random_() % 1024) / 1024;
        candidate = {static_cast<int32_t>(random_() % kVocabulary), logprob};
      }
    }
  }

 private:
  const RunnerLimits limits_;
  const GenerationMemoryPlan plan_;
  std::minstd_rand random_;
};

/// Idle, but writes inputs and delivers results as for a device.
class WritingRunner final : public IdleRunner {
 public:
  explicit WritingRunner(const RunnerLimits& limits)
      : IdleRunner(limits),
        layout_(limits, kContext / kPageTokens),
        memory_(backend_.device->allocate(plan().bytes)),
        buffers_(carve()),
        ring_(backend_.device->make_ring(step_.inputs, layout_.size, buffers_.lasting.results,
                                         most_result_bytes(shape()))),
        inputs_(limits, layout_, step_, *ring_, *backend_.device),
        sampler_(shape(), spec_, weights_, buffers_, inputs_, *ring_, backend_) {}

  void launch(const Step& step) override {
    sampler_.begin(step);
    inputs_.write(step, sampler_.row_of_slot());
    sampler_.write_rows();
    ring_->send(inputs_.bytes());
    ring_->fetch(sampler_.result_bytes());
    sampler_.launched();
    in_flight_.push_back(step);
  }
  void wait() override {
    sampler_.wait();
    offer(in_flight_.front());
    in_flight_.pop_front();
  }

 private:
  SamplerShape shape() const {
    return {limits().max_chosen(), limits().max_sequences, limits().vocab_size};
  }
  SamplerBuffers take(Arena& arena) {
    step_ = take_step_buffers(layout_, limits(), arena);
    SamplerBuffers buffers;
    buffers.lasting = take_lasting_buffers(shape(), arena);
    return buffers;
  }
  PlannedAllocation plan() {
    Arena arena;
    take(arena);
    return arena.plan();
  }
  SamplerBuffers carve() {
    Arena arena(memory_->data(), plan());
    return take(arena);
  }

  Backend backend_ = make_backend({}, {.threads = 1});
  const StepLayout layout_;
  StepBuffers step_;
  const std::unique_ptr<DeviceMemory> memory_;
  const SamplerBuffers buffers_;
  const LmSpec spec_;  // empty, like `weights_`: nothing is computed
  const LmWeights weights_;
  const std::unique_ptr<HostDeviceRing> ring_;
  StepInputs inputs_;
  Sampler sampler_;
  std::deque<Step> in_flight_;
};

void measure(const char* what, StepRunner& runner, int64_t requests, int64_t new_tokens,
             int64_t prompt_tokens, int64_t beams) {
  Sampling sampling;
  sampling.num_beams = beams;
  sampling.max_new_tokens = new_tokens;
  sampling.ignore_eos = true;
  const GenerationOptions options;
  const std::vector<int32_t> prompt(static_cast<size_t>(prompt_tokens), 1);
  std::vector<double> times;
  Engine engine(runner, options);
  for (int round = 0; round < 7; ++round) {
    const GenerationStats before = engine.stats();
    std::vector<std::unique_ptr<Job>> jobs;
    std::vector<std::shared_ptr<Request>> waited;
    for (int64_t i = 0; i < requests; ++i) {
      jobs.push_back(make_job(prompt, sampling, runner.limits(), options));
      waited.push_back(jobs.back()->request);
    }
    engine.submit(jobs, kNoTimeout);
    for (const auto& request : waited) request->wait(kNoTimeout);
    const GenerationStats after = engine.stats();
    times.push_back((after.host_s - before.host_s) /
                    static_cast<double>(after.steps - before.steps));
  }
  std::ranges::sort(times);
  const double step_us = times[times.size() / 2] * 1e6;
  std::printf("%s, %lld requests: %.2f us a step, %.1f ns a token (best of 7: %.2f us)\n", what,
              static_cast<long long>(requests), step_us,
              step_us * 1e3 / static_cast<double>(requests), times[0] * 1e6);
}

}  // namespace

int main(int argc, char** argv) {
  const auto number = [&](int index, int64_t otherwise) -> int64_t {
    return argc > index ? std::atoll(argv[index]) : otherwise;
  };
  const int64_t requests = number(1, 64);
  const int64_t new_tokens = number(2, 2000);
  const int64_t prompt_tokens = number(3, 8);
  const int64_t beams = number(4, 1);
  const std::string only = argc > 5 ? argv[5] : "";
  if (only != "inputs") {
    IdleRunner runner(limits_for(requests * beams));
    measure("engine", runner, requests, new_tokens, prompt_tokens, beams);
  }
  if (only != "engine") {
    WritingRunner runner(limits_for(requests * beams));
    measure("engine, inputs and tokens", runner, requests, new_tokens, prompt_tokens, beams);
  }
  return 0;
}
