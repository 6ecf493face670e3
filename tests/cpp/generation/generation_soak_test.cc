// Random requests, cancels, deadlines, masks and failing steps, in caches that are too small for
// them, by steps that overlap and by steps that do not: at the end no page is missing, and every
// result is that of its lone run.
// PACKHORSE_SOAK_REQUESTS sets how many requests there are.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "fake_runner.h"
#include "generation/generation_session.h"
#include "test.h"

using namespace packhorse;
using packhorse::test::FakeRunner;
using packhorse::test::generate_alone;

namespace {

using Ids = std::vector<int32_t>;

struct Sent {
  Ids prompt;
  Ids source;  // where the model has an encoder
  Sampling sampling;
  std::shared_ptr<GenerationRequest> request;
  bool may_be_cut = false;  // cancelled, or with a deadline

  void cancel() {
    may_be_cut = true;
    request->cancel();
  }
};

// Allows about three in four tokens, by a hash of the last one.
class Following final : public TokenMask {
 public:
  bool fill(std::span<uint32_t> words) override {
    for (uint32_t t = 0; t < 40; ++t) {
      if (test::mix(last_, t) % 4 != 0) words[t / 32] |= 1u << (t % 32);
    }
    return true;
  }
  void accept(int32_t token) override { last_ = uint64_t(token); }
  std::unique_ptr<TokenMask> fork() const override { return std::make_unique<Following>(*this); }

 private:
  uint64_t last_ = 40;
};

int64_t num_requests() {
  const char* set = std::getenv("PACKHORSE_SOAK_REQUESTS");
  return set == nullptr ? 2400 : std::atoll(set);
}

// One caller: sends requests as fast as the queue takes them, and cancels some.
std::vector<Sent> call(GenerationSession& session, uint64_t seed, int64_t count) {
  const int64_t max_source = session.max_source();
  const int64_t draft_tokens = session.options().draft_tokens;
  std::mt19937_64 random(seed);
  const auto draw = [&](uint64_t below) { return random() % below; };
  std::vector<Sent> sent;
  for (int64_t i = 0; i < count; ++i) {
    Sent& next = sent.emplace_back();
    // Few beginnings, so that many prompts share pages.
    next.prompt.assign(draw(3) == 0 ? 0 : 64 * (1 + draw(2)), int32_t(draw(2)));
    for (uint64_t length = 1 + draw(draw(4) == 0 ? 150 : 40); length > 0; --length) {
      next.prompt.push_back(int32_t(draw(40)));
    }
    Sampling& sampling = next.sampling;
    sampling.max_new_tokens = int64_t(draw(draw(3) == 0 ? 220 : 30));
    sampling.temperature = draw(2) == 0 ? 0 : 1;
    sampling.seed = draw(100);
    sampling.n = draw(6) == 0 ? 3 : 1;
    if (draw(4) == 0) sampling.logprobs = 2;
    if (draft_tokens > 0 && draw(3) == 0) sampling.draft_tokens = int64_t(draw(draft_tokens + 1));
    if (draw(4) == 0) sampling.prompt_logprobs = 1;
    if (draw(3) == 0) sampling.stop_ids = {int32_t(draw(40))};
    if (draw(10) == 0) sampling.deadline_s = 1e-6 * double(draw(20000));
    if (sampling.deadline_s && *sampling.deadline_s <= 0) sampling.deadline_s.reset();
    if (draw(8) == 0 && sampling.max_new_tokens > 0) {
      sampling.temperature = 0;
      sampling.num_beams = 3;
      sampling.max_new_tokens = std::min<int64_t>(*sampling.max_new_tokens, 60);
      sampling.n = std::min<int64_t>(sampling.n, 3);
      sampling.logprobs.reset();
    }
    if (draw(5) == 0) sampling.repetition_penalty = 1.3f;
    if (draw(8) == 0) sampling.mask = std::make_shared<Following>();
    if (draw(8) == 0) sampling.allowed_ids = {1, 3, 5, 8, 13, 21, 34};
    if (draw(8) == 0) sampling.no_repeat_ngram_size = int64_t(1 + draw(3));
    if (draw(8) == 0) sampling.min_new_tokens = int64_t(draw(20));
    if (draw(8) == 0) sampling.forced_eos_token_id = {int32_t(draw(40))};
    if (max_source > 0) {  // few, so that many are equal
      next.source.assign(1 + draw(draw(2) == 0 ? 20 : uint64_t(max_source)), int32_t(draw(3)));
      next.source.back() = int32_t(draw(2));
      if (draw(2) == 0) next.prompt.resize(1);
      if (draw(8) == 0) sampling.encoder_no_repeat_ngram_size = 2;
      if (draw(4) == 0) sampling.cache_salt = 1;
    }
    next.request = session.submit(next.prompt, sampling, kNoTimeout, next.source);
    next.may_be_cut = sampling.deadline_s.has_value();
    if (draw(10) == 0) next.cancel();
    if (draw(10) == 0) sent[draw(sent.size())].cancel();
    if (draw(20) == 0) next.request->next();
  }
  return sent;
}

void check_result(const Sent& sent, const RunnerLimits& limits, uint64_t repeats,
                  GenerationSession& lone, int64_t& complete) {
  const Sampling& sampling = sent.sampling;
  std::vector<GeneratedSequence> expected;
  const bool ruled = sampling.no_repeat_ngram_size > 0 || sampling.min_new_tokens > 0 ||
                     !sampling.forced_eos_token_id.empty() ||
                     sampling.encoder_no_repeat_ngram_size > 0;
  if (sampling.num_beams > 1 || sampling.mask || !sampling.allowed_ids.empty() || ruled) {
    Sampling free = sampling;
    free.deadline_s.reset();
    free.draft_tokens.reset();
    if (free.mask) free.mask = std::make_shared<Following>();
    std::vector<Ids> sources;
    if (!sent.source.empty()) sources.push_back(sent.source);
    expected = lone.generate(std::vector<Ids>{sent.prompt}, free, sources)[0];
  }
  for (size_t i = 0; i < size_t(sampling.n); ++i) {
    const GeneratedSequence found = sent.request->result(i);
    CHECK(found.finish_reason != FinishReason::kNone);
    if (sampling.max_new_tokens == 0) {
      CHECK(found.ids.empty());
      continue;
    }
    const bool whole =
        found.finish_reason == FinishReason::kStop || found.finish_reason == FinishReason::kLength;
    complete += whole ? 1 : 0;
    if (sampling.num_beams > 1) {  // hypotheses of a search that is cut may be whole
      if (whole && !sent.may_be_cut)
        CHECK(found.ids == expected[i].ids && found.score == expected[i].score);
      continue;
    }
    const GeneratedSequence alone =
        expected.empty() ? generate_alone({limits.vocab_size, repeats}, sent.prompt, sampling, i,
                                          limits.max_context, sent.source)
                         : expected[i];
    CHECK(found.ids.size() <= alone.ids.size());
    CHECK(std::equal(found.ids.begin(), found.ids.end(), alone.ids.begin()));
    CHECK(std::equal(found.logprobs.begin(), found.logprobs.end(), alone.logprobs.begin()));
    if (whole) CHECK(found.finish_reason == alone.finish_reason && found.ids == alone.ids);
  }
}

RunnerLimits with_sources(RunnerLimits limits) {
  limits.max_source = 190;
  limits.source_vocab_size = 40;
  return limits;
}

enum class Drafts { kNone, kNgrams, kModel };

void soak(const RunnerLimits& limits, bool overlaps, bool prefix_cache, bool fails, uint64_t seed,
          Drafts drafts = Drafts::kNone) {
  GenerationOptions options;
  options.max_tokens = limits.max_tokens;
  options.max_sequences = limits.max_sequences;
  options.max_queue = 50;
  options.prefix_cache = prefix_cache;
  // Texts that repeat themselves, for something to be drafted that is right.
  const uint64_t repeats = drafts == Drafts::kNone ? 0 : 12;
  std::unique_ptr<FakeRunner> draft;
  if (drafts != Drafts::kNone) options.draft_tokens = 6;
  if (drafts == Drafts::kModel) {
    options.draft_model.emplace();
    draft = std::make_unique<FakeRunner>(limits, overlaps, repeats, 5);
  }
  auto owned = std::make_unique<FakeRunner>(limits, overlaps, repeats, 0, std::move(draft));
  FakeRunner& runner = *owned;
  const auto session = make_generation_session(std::move(owned), options);
  // Beams and masks have no lone run but an engine's: one that is never short of anything.
  RunnerLimits ample = limits;
  ample.num_pages = 200;
  GenerationOptions plain = options;
  plain.draft_tokens = 0;
  plain.draft_model.reset();
  const auto lone =
      make_generation_session(std::make_unique<FakeRunner>(ample, false, repeats), plain);

  // Sequences that start together and do not fit together: some are preempted, however fast the
  // callers are.
  Sampling together;
  together.temperature = 1;
  together.n = limits.max_sequences;
  together.max_new_tokens = 300;
  together.ignore_eos = true;
  const Ids source(limits.max_source > 0 ? 70 : 0, 5);
  CHECK(session->submit(Ids{1, 2, 3}, together, kNoTimeout, source)->wait(60));
  CHECK(session->stats().preemptions > 0);

  constexpr int kCallers = 3;
  std::vector<std::vector<Sent>> sent(kCallers);
  std::vector<std::thread> callers;
  std::atomic<int> left = kCallers;
  for (int i = 0; i < kCallers; ++i) {
    callers.emplace_back([&, i] {
      sent[size_t(i)] = call(*session, seed * 100 + uint64_t(i), num_requests() / (4 * kCallers));
      --left;
    });
  }
  while (fails && left > 0) {
    if (runner.fail_in == 0) runner.fail_in = 97;
    if (runner.draft() != nullptr && runner.draft()->fail_in == 0) runner.draft()->fail_in = 211;
    std::this_thread::yield();
  }
  runner.fail_in = 0;
  if (runner.draft() != nullptr) runner.draft()->fail_in = 0;
  for (std::thread& caller : callers) caller.join();
  int64_t complete = 0;
  int64_t ended = limits.max_sequences;
  for (const auto& of_caller : sent) {
    for (const Sent& each : of_caller) {
      CHECK(each.request->wait(60));
      ended += std::max(each.sampling.n, each.sampling.num_beams);
      for (size_t i = 0; i < size_t(each.sampling.n); ++i) {
        const GeneratedSequence result = each.request->result(i);
        CHECK(fails ? (result.error.empty() ||
                       result.error == "a step failed: the fake device is lost")
                    : result.error.empty());
      }
      check_result(each, limits, repeats, *lone, complete);
    }
  }
  const auto is_idle = [&] { return session->stats().steps >= runner.steps || fails; };
  while (!is_idle()) std::this_thread::yield();  // what was thrown away is still computed
  const GenerationStats stats = session->stats();
  // No more than a token is thrown away for each sequence that ended or was preempted.
  CHECK((runner.overlapped > 0) == overlaps);
  const int64_t thrown_away = runner.sampled - stats.new_tokens;
  CHECK(fails || drafts != Drafts::kNone ||
        (overlaps ? thrown_away <= ended + stats.preemptions : thrown_away == 0));
  CHECK(stats.running == 0 && stats.queued == 0);
  CHECK(stats.pages_used == 0);
  CHECK(stats.pages_free + stats.pages_cached == limits.num_pages);
  CHECK(prefix_cache || stats.pages_cached == 0);
  CHECK(complete > num_requests() / 8);
  CHECK((stats.drafted_tokens > 0) == (drafts != Drafts::kNone));
  CHECK((stats.accepted_tokens > stats.drafted_tokens / 8) == (drafts != Drafts::kNone));
}

}  // namespace

TEST(generation_soak) { soak({40, 400, 14, 40, 8}, true, true, false, 1); }
TEST(generation_soak_step_by_step) { soak({40, 400, 14, 40, 8}, false, true, false, 1); }
TEST(generation_soak_without_prefix_cache) { soak({40, 400, 14, 40, 8}, true, false, false, 2); }
TEST(generation_soak_in_few_pages) { soak({40, 330, 16, 8, 8}, true, true, false, 3); }
TEST(generation_soak_of_sources) {
  soak(with_sources({40, 400, 16, 200, 8}), true, true, false, 8);
}
TEST(generation_soak_of_sources_step_by_step) {
  soak(with_sources({40, 330, 12, 190, 8}), false, true, false, 8);
}
TEST(generation_soak_of_sources_without_prefix_cache) {
  soak(with_sources({40, 330, 16, 190, 8}), true, false, false, 9);
}
TEST(generation_soak_of_sources_with_failing_steps) {
  soak(with_sources({40, 400, 16, 200, 12}), true, true, true, 10);
}
TEST(generation_soak_of_sources_with_drafts) {
  soak(with_sources({40, 330, 16, 190, 8}), false, true, false, 11, Drafts::kNgrams);
}
TEST(generation_soak_with_failing_steps) { soak({40, 400, 14, 100, 12}, true, true, true, 4); }
TEST(generation_soak_with_failing_single_steps) {
  soak({40, 400, 14, 100, 12}, false, true, true, 4);
}
TEST(generation_soak_with_drafts_of_ngrams) {
  soak({40, 330, 16, 12, 8}, true, true, false, 5, Drafts::kNgrams);
}
TEST(generation_soak_with_drafts_of_ngrams_step_by_step) {
  soak({40, 400, 14, 40, 8}, false, true, false, 5, Drafts::kNgrams);
}
TEST(generation_soak_with_a_draft_model) {
  soak({40, 400, 14, 40, 8}, true, true, false, 6, Drafts::kModel);
}
TEST(generation_soak_with_a_draft_model_that_fails) {
  soak({40, 400, 14, 100, 12}, true, true, true, 7, Drafts::kModel);
}
