// Steps that are launched while the one before them runs: who takes part in them, what is thrown
// away, and a real model whose results do not depend on it.
#include <algorithm>
#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fake_runner.h"
#include "generation/generation_session.h"
#include "generation/runner/model_runner.h"
#include "test.h"
#include "tiny_model.h"

using namespace packhorse;
using packhorse::test::FakeRunner;
using packhorse::test::generate_alone;

namespace {

using Ids = std::vector<int32_t>;

struct Room {
  RunnerLimits limits{40, 1000, 40, 48, 6, 1};
  GenerationOptions options;
  FakeRunner* runner = nullptr;
  std::shared_ptr<GenerationSession> session;

  Room() {
    options.max_sequences = limits.max_sequences;
    options.max_tokens = limits.max_tokens;
    options.max_adapters = limits.max_adapters;
    auto owned = std::make_unique<FakeRunner>(limits, true);
    runner = owned.get();
    session = make_generation_session(std::move(owned), options);
  }
  ~Room() { runner->let_go(); }
  Ids alone(const Ids& prompt, const Sampling& sampling) const {
    return generate_alone({limits.vocab_size}, prompt, sampling, 0, limits.max_context).ids;
  }
  // All steps that were launched have been collected.
  GenerationStats idle() const {
    for (;;) {
      const GenerationStats stats = session->stats();
      if (stats.steps == runner->steps) return stats;
      std::this_thread::yield();
    }
  }
};

Sampling new_tokens(int64_t count) {
  Sampling sampling;
  sampling.max_new_tokens = count;
  return sampling;
}

// Allows each token but the one before it.
class NoRepeats final : public TokenMask {
 public:
  bool fill(std::span<uint32_t> words) override {
    for (int32_t t = 0; t < 40; ++t) {
      if (t != last_) words[size_t(t) / 32] |= 1u << (t % 32);
    }
    return true;
  }
  void accept(int32_t token) override { last_ = token; }
  std::unique_ptr<TokenMask> fork() const override { return std::make_unique<NoRepeats>(*this); }

 private:
  int32_t last_ = -1;
};

}  // namespace

TEST(generation_overlap_computes_nothing_behind_the_last_token) {
  Room room;
  const Ids prompt = {1, 2, 3};
  CHECK(room.session->generate(std::vector<Ids>{prompt}, new_tokens(8))[0][0].ids ==
        room.alone(prompt, new_tokens(8)));
  const GenerationStats stats = room.idle();
  CHECK(stats.steps == 8 && stats.new_tokens == 8 && stats.computed_tokens == 3 + 7);
  CHECK(room.runner->overlapped == 7 && room.runner->sampled == 8);
}

TEST(generation_overlap_throws_away_one_token_behind_a_stop) {
  Room room;
  const Ids prompt = {1, 2, 3};
  Sampling sampling = new_tokens(40);
  const Ids free = room.alone(prompt, sampling);
  sampling.stop_ids = {free[7]};
  const Ids stopped = room.alone(prompt, sampling);
  CHECK(room.session->generate(std::vector<Ids>{prompt}, sampling)[0][0].ids == stopped);
  const GenerationStats stats = room.idle();
  const auto size = static_cast<int64_t>(stopped.size());
  CHECK(stats.new_tokens == size && stats.steps == size + 1 && room.runner->sampled == size + 1);
  CHECK(stats.finished_requests == 1 && stats.running == 0 && stats.pages_used == 0);
}

TEST(generation_overlap_lets_only_masks_wait) {
  Room room;
  room.runner->hold();
  const auto first = room.session->submit(Ids{1}, new_tokens(2));
  room.runner->wait_held();
  Sampling masked = new_tokens(15);
  masked.mask = std::make_shared<NoRepeats>();
  const auto other = room.session->submit(Ids{1, 2}, masked);
  const auto free = room.session->submit(Ids{3, 4}, new_tokens(40));
  room.runner->let_go();
  CHECK(first->wait() && other->wait() && free->wait());
  CHECK(free->result().ids == room.alone({3, 4}, new_tokens(40)));
  const Ids ids = other->result().ids;
  CHECK(ids.size() == 15 && std::ranges::adjacent_find(ids) == ids.end());
  // A step for each token of the free one, in every second of which the other takes part.
  const GenerationStats stats = room.idle();
  CHECK(stats.steps <= 2 + 40 && stats.new_tokens == 2 + 15 + 40);
  CHECK(room.runner->sampled == stats.new_tokens);
}

TEST(generation_overlap_cancels_within_a_step) {
  Room room;
  const auto request = room.session->submit(Ids{5}, new_tokens(900));
  CHECK(!request->next().empty());
  request->cancel();
  CHECK(request->wait() && request->finish_reason() == FinishReason::kCancelled);
  const Ids ids = request->result().ids;
  const Ids all = room.alone({5}, new_tokens(900));
  CHECK(std::equal(ids.begin(), ids.end(), all.begin()));
  const GenerationStats stats = room.idle();
  CHECK(room.runner->sampled - stats.new_tokens <= 1);
  CHECK(stats.pages_used == 0 && stats.running == 0);
}

TEST(generation_overlap_pauses_for_adapters) {
  Room room;
  const auto request = room.session->submit(Ids{5}, new_tokens(900));
  CHECK(!request->next().empty());
  for (int i = 0; i < 5; ++i) {
    room.session->add_adapter("one", *test::TinyWeights().source());
    room.session->remove_adapter("one");
  }
  CHECK(request->wait() && request->result().ids == room.alone({5}, new_tokens(900)));
}

#ifdef PACKHORSE_WITH_CPU
namespace {

// A model on the CPU, whose steps are computed when they are launched, and collected as late as
// those of a GPU.
class LateModel final : public StepRunner {
 public:
  explicit LateModel(std::unique_ptr<StepRunner> model) : model_(std::move(model)) {}
  const RunnerLimits& limits() const override { return model_->limits(); }
  const GenerationMemoryPlan& memory_plan() const override { return model_->memory_plan(); }
  bool overlaps() const override { return true; }
  /// The first step waits until `go`, so that all requests meet.
  void launch(const Step& step) override {
    go.wait(false);
    pending += std::ranges::count(step.sequences, true, &SequenceSlice::pending);
    model_->launch(step);
  }
  void wait() override { model_->wait(); }

  std::atomic<bool> go = false;
  std::atomic<int64_t> pending = 0;

 private:
  const std::unique_ptr<StepRunner> model_;
};

bool same(const GeneratedSequence& a, const GeneratedSequence& b) {
  return a.ids == b.ids && a.logprobs == b.logprobs && a.finish_reason == b.finish_reason &&
         a.score == b.score &&
         std::ranges::equal(a.top_logprobs, b.top_logprobs, [](const auto& x, const auto& y) {
           return x.id == y.id && x.logprob == y.logprob;
         });
}

// Requests of every kind.
std::vector<Sampling> samplings() {
  std::vector<Sampling> result(12);
  for (size_t i = 0; i < result.size(); ++i) {
    result[i].max_new_tokens = 20 + int64_t(7 * i);
    result[i].ignore_eos = true;
    result[i].seed = i;
    if (i % 2 == 1) result[i].temperature = 0.9f;
  }
  result[1].logprobs = 0;
  result[2].logprobs = 3;
  result[3].top_k = 20;
  result[3].top_p = 0.9f;
  result[3].min_p = 0.01f;
  result[3].repetition_penalty = 1.3f;
  result[4].presence_penalty = 0.5f;
  result[4].frequency_penalty = 0.3f;
  result[5].logit_bias = {{3, 2.0f}, {7, -5.0f}};
  result[5].n = 2;
  result[6].allowed_ids = {1, 2, 3, 5, 8, 13, 21};
  result[7].prompt_logprobs = 2;
  result[8].num_beams = 3;
  result[8].repetition_penalty = 1.1f;
  result[9].max_new_tokens = result[10].max_new_tokens = 200;  // so long that some are preempted
  result[9].no_repeat_ngram_size = 2;
  result[9].bad_words_ids = {{3}, {7, 9}};
  result[9].sequence_bias = {{{5}, 2.0f}, {{5, 11}, 8.0f}};
  result[10].suppress_tokens = {4, 8};
  result[10].begin_suppress_tokens = {9, 10};
  result[10].stop_ids = {1, 2};
  result[10].min_new_tokens = 80;
  result[10].forced_bos_token_id = 17;
  result[10].forced_eos_token_id = {1, 2, 3};
  result[10].exponential_decay_length_penalty = {.start = 80, .factor = 1.05};
  result[11] = result[10];
  result[11].no_repeat_ngram_size = 3;
  result[11].num_beams = 2;
  result[11].max_new_tokens = 97;
  result[11].temperature = 0;
  return result;
}

}  // namespace

TEST(generation_overlap_changes_no_bit_of_a_model) {
  const std::string spec = test::tiny_spec(R"({
    "type_vocab_size": null, "max_seqlen": 400,
    "positions": {"kind": "none", "count": null, "offset": null},
    "attention": {"mask": "causal", "rope": {"theta": 10000}},
    "heads": {"pooler": null, "lm": {"tied": true}}, "embedding": {"pooling": "last"}})");
  GenerationOptions options;
  options.max_tokens = 60;
  options.max_sequences = 7;
  options.threads = 1;
  // A request alone, step by step.
  options.kv_tokens = 100 * kPageTokens;
  const auto lone = make_generation_session(
      load_model_runner(spec, *test::TinyWeights().source(), options), options);
  for (const int64_t pages : {100, 8}) {
    options.kv_tokens = pages * kPageTokens;
    auto owned = std::make_unique<LateModel>(
        load_model_runner(spec, *test::TinyWeights().source(), options));
    LateModel& model = *owned;
    const auto session = make_generation_session(std::move(owned), options);
    std::vector<Ids> prompts;
    std::vector<Sampling> wanted;
    std::vector<std::shared_ptr<GenerationRequest>> requests;
    for (const size_t length : {1, 30, 130}) {
      for (const Sampling& sampling : samplings()) {
        Ids& ids = prompts.emplace_back(length);
        for (size_t i = 0; i < length; ++i) ids[i] = int32_t(test::mix(prompts.size(), i) % 50);
        wanted.push_back(sampling);
        requests.push_back(session->submit(ids, sampling, kNoTimeout));
      }
    }
    model.go = true;
    model.go.notify_all();
    for (size_t i = 0; i < requests.size(); ++i) {
      const auto alone = lone->submit(prompts[i], wanted[i]);
      CHECK(alone->wait() && requests[i]->wait());
      for (size_t k = 0; k < alone->num_sequences(); ++k) {
        CHECK(same(requests[i]->result(k), alone->result(k)));
      }
      CHECK(requests[i]->prompt_logprobs().logprobs == alone->prompt_logprobs().logprobs);
    }
    CHECK(model.pending > 500);
    CHECK((session->stats().preemptions > 0) == (pages == 8));
  }
}
#endif
