// Beam search and masks in the engine, with pages that beams share.
#include <algorithm>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fake_runner.h"
#include "generation/generation_session.h"
#include "generation/sampling/beam_search.h"
#include "test.h"

using namespace packhorse;
using packhorse::test::FakeModel;
using packhorse::test::FakeRunner;

namespace {

using Ids = std::vector<int32_t>;

std::shared_ptr<GenerationSession> make_session(int64_t num_pages, bool prefix_cache = true,
                                                int64_t max_sequences = 8,
                                                FakeRunner** runner = nullptr,
                                                int64_t vocab_size = 40) {
  const RunnerLimits limits{vocab_size, 1000, num_pages, 48, max_sequences};
  GenerationOptions options;
  options.max_sequences = limits.max_sequences;
  options.max_tokens = limits.max_tokens;
  options.prefix_cache = prefix_cache;
  auto owned = std::make_unique<FakeRunner>(limits);
  if (runner != nullptr) *runner = owned.get();
  return make_generation_session(std::move(owned), options);
}

Ids prompt_of(size_t length) {
  Ids ids(length);
  for (size_t i = 0; i < length; ++i) ids[i] = int32_t(test::mix(9, i) % 40);
  return ids;
}

Sampling beams(int64_t count, int64_t new_tokens) {
  Sampling sampling;
  sampling.num_beams = sampling.n = count;
  sampling.max_new_tokens = new_tokens;
  sampling.logprobs = 0;
  return sampling;
}

// Searches with each beam computed from its first token on: no engine, no pages.
std::vector<Hypothesis> search_alone(const Ids& prompt, const Sampling& sampling,
                                     std::span<const uint32_t> mask = {}) {
  struct Beam {
    Ids tokens;
    std::vector<float> logprobs;
    std::vector<TokenLogprob> top;
  };
  std::vector<Beam> running = {{prompt, {}, {}}};
  Ids stop_ids = sampling.stop_ids;
  BeamSearch search({sampling.num_beams, sampling.length_penalty, sampling.early_stopping,
                     *sampling.max_new_tokens, stop_ids});
  for (;;) {
    std::vector<BeamOffer> offers;
    for (Beam& beam : running) {
      uint64_t sum = 0;
      for (size_t i = 0; i < beam.tokens.size(); ++i) {
        sum += FakeModel::key(sum, beam.tokens[i], int64_t(i));
      }
      StepSampler sampler;
      sampler.sampling = &sampling;
      sampler.history = beam.tokens;
      sampler.mask = mask;
      beam.top.resize(size_t(candidates_per_beam(sampling.num_beams, stop_ids.size(), 40)));
      FakeModel().sample(sum, beam.tokens.back(), sampler, nullptr, beam.top);
      offers.push_back({beam.top, std::span(beam.tokens).subspan(prompt.size()), beam.logprobs});
    }
    if (!search.advance(offers)) return search.finish();
    std::vector<Beam> next;
    for (const NextBeam& beam : search.next()) {
      next.push_back(running[size_t(beam.parent)]);
      next.back().tokens.push_back(beam.token.id);
      next.back().logprobs.push_back(beam.token.logprob);
    }
    running = std::move(next);
  }
}

void check_equal(const std::vector<GeneratedSequence>& found,
                 const std::vector<Hypothesis>& expected) {
  CHECK(found.size() == expected.size());
  for (size_t i = 0; i < std::min(found.size(), expected.size()); ++i) {
    CHECK(found[i].ids == expected[i].ids && found[i].score == expected[i].score);
    CHECK(found[i].logprobs == expected[i].logprobs);
    CHECK(found[i].finish_reason == expected[i].reason);
  }
}

// Allows the tokens of a list at each place; then none.
class Script final : public TokenMask {
 public:
  explicit Script(std::vector<Ids> places) : places_(std::move(places)) {}
  bool fill(std::span<uint32_t> words) override {
    if (place_ >= places_.size()) return true;
    if (places_[place_].empty()) return false;  // any
    for (const int32_t id : places_[place_]) words[size_t(id) / 32] |= 1u << (id % 32);
    return true;
  }
  void accept(int32_t token) override {
    if (token == 13) throw std::runtime_error("13 brings no luck");
    const Ids& allowed = places_.at(place_++);
    if (!allowed.empty() && std::ranges::find(allowed, token) == allowed.end()) {
      throw std::runtime_error("not allowed");
    }
  }
  std::unique_ptr<TokenMask> fork() const override { return std::make_unique<Script>(*this); }

 private:
  std::vector<Ids> places_;
  size_t place_ = 0;
};

// Allows all, and cannot be forked after so many tokens.
class SkinnyForks final : public TokenMask {
 public:
  explicit SkinnyForks(int tokens) : tokens_(tokens) {}
  bool fill(std::span<uint32_t>) override { return false; }
  void accept(int32_t) override { --tokens_; }
  std::unique_ptr<TokenMask> fork() const override {
    if (tokens_ == 0) throw std::runtime_error("no more forks");
    return std::make_unique<SkinnyForks>(*this);
  }

 private:
  int tokens_;
};

class Unforkable final : public TokenMask {
 public:
  bool fill(std::span<uint32_t>) override { return false; }
  void accept(int32_t) override {}
};

}  // namespace

TEST(generation_searches_beams) {
  for (const bool prefix_cache : {true, false}) {
    FakeRunner* runner = nullptr;
    const auto session = make_session(40, prefix_cache, 8, &runner);
    for (const size_t length : {1, 63, 64, 65, 150}) {
      Sampling sampling = beams(4, 90);
      sampling.stop_ids = {3};
      sampling.repetition_penalty = 1.1f;
      sampling.early_stopping = EarlyStopping::kNever;
      const Ids prompt = prompt_of(length);
      check_equal(session->generate(std::vector<Ids>{prompt}, sampling)[0],
                  search_alone(prompt, sampling));
    }
    CHECK(runner->copies > 0);
    CHECK(session->stats().pages_used == 0);
  }
}

TEST(generation_preempts_beams_together) {
  for (const bool prefix_cache : {true, false}) {
    FakeRunner* runner = nullptr;
    const auto session = make_session(14, prefix_cache, 8, &runner);
    Sampling sampling = beams(3, 200);
    const std::vector<Ids> prompts = {prompt_of(70), prompt_of(130), prompt_of(3)};
    // All are there before one of them can be done.
    runner->hold();
    std::vector<std::shared_ptr<GenerationRequest>> requests;
    for (const Ids& prompt : prompts) requests.push_back(session->submit(prompt, sampling));
    runner->let_go();
    for (size_t i = 0; i < prompts.size(); ++i) {
      CHECK(requests[i]->wait());
      std::vector<GeneratedSequence> found;
      for (size_t k = 0; k < 3; ++k) found.push_back(requests[i]->result(k));
      check_equal(found, search_alone(prompts[i], sampling));
    }
    CHECK(session->stats().preemptions > 0);
  }
}

TEST(generation_fits_beams_exactly) {
  // 2 pages of the prompt are shared, and each beam has 2 of its own.
  const auto session = make_session(2 + 3 * 2);
  const Ids prompt = prompt_of(130);
  const Sampling sampling = beams(3, 127);  // the last token is not computed
  check_equal(session->generate(std::vector<Ids>{prompt}, sampling)[0],
              search_alone(prompt, sampling));
  CHECK_THROWS_WITH(session->submit(prompt, beams(3, 128)), "needs 704 tokens of cache");
  CHECK_THROWS_WITH(session->submit(prompt, beams(3, 128)), "num_beams 3");
}

TEST(generation_searches_beams_in_a_small_vocabulary) {
  const auto session = make_session(10, true, 8, nullptr, 3);
  const auto found = session->generate(std::vector<Ids>{{1, 2}}, beams(5, 4))[0];
  CHECK(found.size() == 5);
  for (const GeneratedSequence& sequence : found) CHECK(sequence.ids.size() == 4);
}

TEST(generation_breaks_beams_off) {
  FakeRunner* runner = nullptr;
  const auto session = make_session(40, true, 8, &runner);
  runner->hold();
  const auto request = session->submit(prompt_of(10), beams(3, 500));
  runner->let_go(5);
  while (runner->steps < 5) std::this_thread::yield();
  request->cancel();
  runner->let_go();
  CHECK(request->wait());
  for (size_t i = 0; i < 3; ++i) {
    CHECK(request->finish_reason(i) == FinishReason::kCancelled);
    CHECK(request->result(i).ids.size() >= 4);
  }
}

TEST(generation_keeps_to_masks) {
  const auto session = make_session(20);
  Sampling sampling;
  sampling.max_new_tokens = 10;
  sampling.mask = std::make_shared<Script>(std::vector<Ids>{{5}, {6, 7}, {39}});
  const auto found = session->generate(std::vector<Ids>{prompt_of(4)}, sampling)[0][0];
  CHECK(found.ids.size() == 3 && found.ids[0] == 5 && found.ids[2] == 39);
  CHECK(found.finish_reason == FinishReason::kStop);

  sampling.mask = nullptr;
  sampling.allowed_ids = {2, 31, 32};
  const auto few = session->generate(std::vector<Ids>{prompt_of(4)}, sampling)[0][0];
  for (const int32_t id : few.ids) {
    CHECK(id == 2 || id == 31 || id == 32);
  }
  sampling.mask = std::make_shared<Script>(std::vector<Ids>{{}, {2, 6}, {1}});
  const auto both = session->generate(std::vector<Ids>{prompt_of(4)}, sampling)[0][0];
  CHECK(both.ids.size() == 2 && both.ids[1] == 2 && both.finish_reason == FinishReason::kStop);

  sampling.mask = std::make_shared<Script>(std::vector<Ids>{});
  const auto none = session->generate(std::vector<Ids>{prompt_of(4)}, sampling)[0][0];
  CHECK(none.ids.empty() && none.finish_reason == FinishReason::kStop);
}

TEST(generation_fails_with_its_mask_alone) {
  const auto session = make_session(20);
  Sampling sampling;
  sampling.max_new_tokens = 10;
  sampling.mask = std::make_shared<Script>(std::vector<Ids>{{5}, {13}, {1}});
  const auto bad = session->submit(prompt_of(4), sampling);
  const auto good = session->submit(prompt_of(5), beams(2, 10));
  CHECK(bad->wait() && good->wait());
  CHECK(bad->result().error == "the token mask failed: 13 brings no luck");
  CHECK(bad->result().ids.size() == 2 && good->finish_reason() == FinishReason::kLength);
}

TEST(generation_gives_all_pages_back_when_a_fork_fails) {
  const auto session = make_session(20, /*prefix_cache=*/false);
  Sampling sampling = beams(3, 10);
  sampling.mask = std::make_shared<SkinnyForks>(4);
  const auto request = session->submit(prompt_of(70), sampling);
  CHECK(request->wait());
  CHECK(request->result().error == "the token mask failed: no more forks");
  CHECK(session->stats().pages_used == 0);
}

TEST(generation_forks_masks) {
  const auto session = make_session(20);
  Sampling sampling = beams(3, 3);
  const Ids some = {4, 9, 14, 19, 24, 29, 34};
  sampling.mask = std::make_shared<Script>(std::vector<Ids>{some, some, some, some});
  uint32_t words[2] = {};
  for (const int32_t id : some) words[id / 32] |= 1u << (id % 32);
  check_equal(session->generate(std::vector<Ids>{prompt_of(4)}, sampling)[0],
              search_alone(prompt_of(4), sampling, words));
  // A single way: the other beams are dropped.
  sampling.mask = std::make_shared<Script>(std::vector<Ids>{{5}, {6}, {7}, {8}});
  const auto found = session->generate(std::vector<Ids>{prompt_of(4)}, sampling)[0];
  CHECK(found[0].ids == Ids({5, 6, 7}));

  Sampling several;
  several.n = 2;
  several.max_new_tokens = 3;
  several.temperature = 1;
  several.mask = std::make_shared<Script>(std::vector<Ids>{some, {1}, some});
  const auto two = session->generate(std::vector<Ids>{prompt_of(4)}, several)[0];
  for (const auto& each : two) {
    CHECK(each.ids.size() == 3 && each.ids[1] == 1);
  }
  several.mask = std::make_shared<Unforkable>();
  CHECK_THROWS_WITH(session->submit(prompt_of(4), several), "the mask cannot be forked");
}
