// Neither the engine nor a model allocates from step to step. All allocations of the process are
// counted.
#include <array>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "generation/generation_session.h"
#include "generation/runner/model_runner.h"
#include "test.h"
#include "tiny_model.h"

namespace {
std::atomic<int64_t> allocations = 0;
}

// A sanitizer has operators of its own, and its builds count nothing.
#ifndef __SANITIZE_ADDRESS__
// Not inlined, or GCC warns of memory that malloc gave and delete takes.
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
#endif

using namespace packhorse;

namespace {

constexpr size_t kSteps = 700;

// Notes at each step how many allocations there have been.
struct StepCounts {
  void begin_step() {
    // The first step ends when all requests are there, so that they run together.
    while (!all_submitted) std::this_thread::yield();
    if (steps < kSteps) allocated[steps] = allocations;
    ++steps;
  }

  std::atomic<bool> all_submitted = false;
  size_t steps = 0;
  std::array<int64_t, kSteps> allocated = {};
};

// Runs a request for each of `samplings` together and waits for them. Each has a prompt of 200
// tokens, which no other begins like.
std::vector<std::shared_ptr<GenerationRequest>> run(GenerationSession& session, StepCounts& counts,
                                                    const std::vector<Sampling>& samplings) {
  std::vector<std::shared_ptr<GenerationRequest>> requests;
  for (const Sampling& sampling : samplings) {
    const auto token = static_cast<int32_t>(requests.size() + 1);
    requests.push_back(session.submit(std::vector<int32_t>(200, token), sampling));
  }
  counts.all_submitted = true;
  for (const auto& request : requests) request->wait();
  return requests;
}

class CountingRunner final : public StepRunner {
 public:
  const RunnerLimits& limits() const override { return limits_; }
  const GenerationMemoryPlan& memory_plan() const override { return plan_; }
  void launch(const Step& step) override {
    counts.begin_step();
    for (const SequenceSlice& sequence : step.sequences) {
      if (!sequence.sample) continue;
      *sequence.chosen = {int32_t(sequence.kv_len() % 40), -1};
      for (TokenLogprob& top : sequence.top) top = *sequence.chosen;
    }
  }

  StepCounts counts;

 private:
  const RunnerLimits limits_{40, 2000, 24, 100, 4};
  const GenerationMemoryPlan plan_;
};

}  // namespace

TEST(generation_allocates_nothing_from_step_to_step) {
  auto owned = std::make_unique<CountingRunner>();
  StepCounts& counts = owned->counts;
  GenerationOptions options;
  options.max_tokens = 100;
  options.max_sequences = 4;
  const auto session = make_generation_session(std::move(owned), options);
  Sampling sampling;
  sampling.max_new_tokens = 500;
  sampling.logprobs = 3;
  // Prompts that are cut, pages that fill up, and preemptions: 3 times 700 tokens, 24 pages.
  run(*session, counts, {sampling, sampling, sampling});
  CHECK(session->stats().preemptions > 0);
  // The last steps are of the last sequence alone; in the first ones the sequences start.
  CHECK(counts.steps > 520);
  CHECK(counts.allocated[480] == counts.allocated[20]);
}

#ifdef PACKHORSE_WITH_CPU
namespace {

// The steps of a real model.
class CountingModel final : public StepRunner {
 public:
  explicit CountingModel(std::unique_ptr<StepRunner> model) : model_(std::move(model)) {}

  const RunnerLimits& limits() const override { return model_->limits(); }
  const GenerationMemoryPlan& memory_plan() const override { return model_->memory_plan(); }
  void launch(const Step& step) override {
    counts.begin_step();
    model_->launch(step);
  }
  void wait() override { model_->wait(); }
  StepRunner* draft() override { return model_->draft(); }

  StepCounts counts;

 private:
  const std::unique_ptr<StepRunner> model_;
};

std::string decoder_spec() {
  return test::tiny_spec(R"({
    "type_vocab_size": null, "max_seqlen": 2000,
    "positions": {"kind": "none", "count": null, "offset": null},
    "attention": {"mask": "causal", "rope": {"theta": 10000}},
    "heads": {"pooler": null, "lm": {"tied": true}}, "embedding": {"pooling": "last"}})");
}

}  // namespace

TEST(generation_by_a_model_allocates_nothing_from_step_to_step) {
  const std::string spec = decoder_spec();
  GenerationOptions options;
  options.max_tokens = 100;
  options.max_sequences = 4;
  options.kv_tokens = 24 * kPageTokens;
  options.threads = 2;
  auto owned = std::make_unique<CountingModel>(
      load_model_runner(spec, *test::TinyWeights().source(), options));
  StepCounts& counts = owned->counts;
  const auto session = make_generation_session(std::move(owned), options);
  // One of every kind: greedy, sampled by every filter, with penalties and biases.
  Sampling greedy;
  greedy.max_new_tokens = 500;
  greedy.ignore_eos = true;
  greedy.temperature = 0;
  greedy.logprobs = 3;
  Sampling sampled = greedy;
  sampled.temperature = 0.8f;
  sampled.seed = 1;
  sampled.top_k = 20;
  sampled.top_p = 0.9f;
  sampled.min_p = 0.01f;
  Sampling penalised = sampled;
  penalised.repetition_penalty = 1.2f;
  penalised.presence_penalty = 0.1f;
  penalised.frequency_penalty = 0.1f;
  penalised.logit_bias = {{3, 0.5f}};
  greedy.stop_ids = {9};
  greedy.min_new_tokens = 500;
  greedy.suppress_tokens = {1, 2};
  penalised.bad_words_ids = {{5}, {6, 7}};
  penalised.sequence_bias = {{{8}, 0.5f}, {{8, 10}, 1.0f}};
  for (const auto& request : run(*session, counts, {greedy, sampled, penalised})) {
    CHECK(request->result().ids.size() == 500);
  }
  CHECK(session->stats().preemptions > 0);
  CHECK(counts.steps > 520);
  CHECK(counts.allocated[480] == counts.allocated[20]);
}

TEST(generation_with_drafts_allocates_nothing_from_step_to_step) {
  const std::string spec = decoder_spec();
  const test::TinyWeights weights;
  const auto source = weights.source();
  for (const bool by_model : {false, true}) {
    GenerationOptions options;
    options.max_tokens = 100;
    options.max_sequences = 4;
    options.kv_tokens = 60 * kPageTokens;
    options.threads = 2;
    options.draft_tokens = 4;
    if (by_model) options.draft_model = {.folder = {}, .spec_json = spec, .weights = source.get()};
    auto owned = std::make_unique<CountingModel>(load_model_runner(spec, *source, options));
    StepCounts& counts = owned->counts;
    const auto session = make_generation_session(std::move(owned), options);
    Sampling greedy;
    greedy.max_new_tokens = 800;
    greedy.ignore_eos = true;
    greedy.logprobs = 2;
    Sampling sampled = greedy;
    sampled.temperature = 0.7f;
    run(*session, counts, {greedy, sampled, sampled});
    CHECK(session->stats().accepted_tokens > 100);
    CHECK(counts.steps > 160);
    CHECK(counts.allocated[150] == counts.allocated[20]);
  }
}
#endif
