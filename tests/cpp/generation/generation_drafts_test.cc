// Speculative decoding: texts, log-probabilities and the prefix cache are what they are without.
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "fake_runner.h"
#include "generation/generation_session.h"
#include "generation/scheduler/scheduler.h"
#include "generation/speculation/ngram_index.h"
#include "generation/speculation/speculation.h"
#include "test.h"

using namespace packhorse;
using packhorse::test::FakeModel;
using packhorse::test::FakeRunner;
using packhorse::test::generate_alone;

namespace {

using Ids = std::vector<int32_t>;

constexpr uint64_t kRepeats = 20;

GenerationOptions options_of(const RunnerLimits& limits, int64_t draft_tokens, bool by_model) {
  GenerationOptions options;
  options.max_tokens = limits.max_tokens;
  options.max_sequences = limits.max_sequences;
  options.draft_tokens = draft_tokens;
  if (by_model) options.draft_model.emplace();
  return options;
}

struct Opened {
  FakeRunner* runner = nullptr;
  std::shared_ptr<GenerationSession> session;
};

// `flaw`: FakeModel::flaw of a draft model.
Opened open(const RunnerLimits& limits, int64_t draft_tokens, bool by_model = false,
            uint64_t flaw = 0, int64_t draft_context = 0, bool overlaps = true) {
  RunnerLimits of_draft = limits;
  if (draft_context > 0) of_draft.max_context = draft_context;
  auto draft =
      by_model ? std::make_unique<FakeRunner>(of_draft, overlaps, kRepeats, flaw) : nullptr;
  auto runner = std::make_unique<FakeRunner>(limits, overlaps, kRepeats, 0, std::move(draft));
  FakeRunner* const opened = runner.get();
  return {opened,
          make_generation_session(std::move(runner), options_of(limits, draft_tokens, by_model))};
}

void check_same(const GeneratedSequence& found, const GeneratedSequence& expected) {
  CHECK(found.ids == expected.ids && found.finish_reason == expected.finish_reason);
  CHECK(found.logprobs == expected.logprobs);
  CHECK(found.top_logprobs.size() == expected.top_logprobs.size());
  for (size_t i = 0; i < found.top_logprobs.size(); ++i) {
    CHECK(found.top_logprobs[i].id == expected.top_logprobs[i].id);
    CHECK(found.top_logprobs[i].logprob == expected.top_logprobs[i].logprob);
  }
}

// Looks up the tokens that followed the last occurrence of the longest n-gram that the text ends
// with.
bool look_up(const Ids& text, size_t count, Ids& drafts) {
  for (size_t n = std::min(NgramIndex::kLongest, text.size()); n >= NgramIndex::kShortest; --n) {
    for (size_t end = text.size() - 1; end >= n; --end) {
      if (!std::equal(text.end() - ptrdiff_t(n), text.end(), text.begin() + ptrdiff_t(end - n))) {
        continue;
      }
      Ids longer = text;
      drafts.clear();
      for (size_t i = 0; i < count; ++i) {
        drafts.push_back(longer[end + i]);
        longer.push_back(drafts.back());
      }
      return true;
    }
  }
  return false;
}

}  // namespace

TEST(ngrams_are_found_where_they_stood_last) {
  std::mt19937 random(1);
  for (const uint32_t letters : {2, 5, 30}) {
    NgramIndex index(1 << 20);  // so large that nearly no n-gram takes another one's place
    Ids text, drafts(5), expected;
    int found = 0, same = 0;
    for (int i = 0; i < 400; ++i) {
      text.push_back(int32_t(random() % letters));
      if (random() % 3 == 0) continue;  // several tokens may have come
      index.update(text);
      const bool has = look_up(text, drafts.size(), expected);
      CHECK(index.find(text, drafts) == has);
      found += has ? 1 : 0;
      same += has && drafts == expected ? 1 : 0;
    }
    CHECK(found > 50 && same == found);
  }
}

TEST(ngrams_that_share_a_place_are_told_apart) {
  std::mt19937 random(2);
  NgramIndex index(64);  // for a text of that length; this one is longer
  Ids text, draft(1);
  int found = 0;
  for (int i = 0; i < 3000; ++i) {
    text.push_back(int32_t(random() % 25));
    index.update(text);
    if (!index.find(text, draft)) continue;
    ++found;
    bool stood = false;
    for (size_t end = 2; end < text.size() && !stood; ++end) {
      stood = text[end - 2] == *(text.end() - 2) && text[end - 1] == text.back() &&
              text[end] == draft[0];
    }
    CHECK(stood);
  }
  CHECK(found > 50);
}

TEST(drafts_grow_with_success_and_rest_after_failures) {
  DraftLength length(8, false);
  CHECK(length.next() == 4);
  length.tell(4, 4);
  CHECK(length.next() == 8);
  length.tell(8, 8);
  CHECK(length.next() == 8);
  length.tell(8, 2);
  CHECK(length.next() == 5);
  length.tell(5, 0);
  CHECK(length.next() == 2);
  int64_t rests = 0;
  for (int failure = 0; failure < 12; ++failure) {
    int64_t drafts = length.next();
    for (; drafts == 0; drafts = length.next()) ++rests;
    CHECK(drafts <= 2);
    length.tell(drafts, 0);
  }
  CHECK(rests > 100);
  int64_t drafts = length.next();
  while (drafts == 0) drafts = length.next();
  length.tell(1, 1);
  CHECK(length.next() == 2);
  CHECK(DraftLength(2, false).next() == 2);
}

TEST(drafts_of_a_model_are_as_many_as_are_likely_right) {
  for (const int64_t right_of_ten : {10, 9, 7, 3}) {
    DraftLength length(8, true);
    CHECK(length.next() == 4);
    int64_t drafts = 0, steps = 0, number = 0;
    for (int step = 0; step < 2000; ++step) {
      const int64_t drafted = length.next();
      if (drafted == 0) continue;
      int64_t accepted = 0;
      while (accepted < drafted && int64_t(test::mix(7, uint64_t(number)) % 10) < right_of_ten) {
        ++accepted, ++number;
      }
      ++number;
      length.tell(drafted, accepted);
      drafts += drafted, ++steps;
    }
    const double mean = double(drafts) / double(steps);
    CHECK(right_of_ten < 10 || mean > 7.5);
    CHECK(right_of_ten != 9 || (mean > 4.5 && mean < 8));
    CHECK(right_of_ten != 7 || (mean > 1.5 && mean < 3.5));
    CHECK(right_of_ten != 3 || mean < 1.3);
  }
}

TEST(drafts_change_nothing_in_a_text) {
  const RunnerLimits limits{40, 700, 60, 64, 6};
  std::mt19937_64 random(3);
  const auto draw = [&](uint64_t below) { return random() % below; };
  for (const bool by_model : {false, true}) {
    const Opened opened = open(limits, 7, by_model, 6);
    for (int round = 0; round < 12; ++round) {
      std::vector<Ids> prompts;
      std::vector<Sampling> samplings;
      std::vector<std::shared_ptr<GenerationRequest>> requests;
      for (int i = 0; i < 6; ++i) {
        Ids& prompt = prompts.emplace_back();
        for (uint64_t length = 1 + draw(200); length > 0; --length) {
          prompt.push_back(int32_t(draw(2) == 0 ? length % 9 : draw(40)));
        }
        Sampling& sampling = samplings.emplace_back();
        sampling.max_new_tokens = int64_t(1 + draw(150));
        sampling.temperature = draw(2) == 0 ? 0 : 1.5f;
        sampling.seed = draw(100);
        sampling.n = draw(4) == 0 ? 2 : 1;
        if (draw(2) == 0) sampling.logprobs = int64_t(draw(3));
        if (draw(3) == 0) sampling.stop_ids = {int32_t(draw(40))};
        if (draw(4) == 0) sampling.allowed_ids = {1, 2, 3, 5, 8, 13, 21, 34, 10, 33, 24, 11};
        if (draw(5) == 0) sampling.logit_bias = {{int32_t(draw(40)), 5.0f}};
        if (draw(6) == 0) sampling.repetition_penalty = 1.2f;
        if (draw(5) == 0) sampling.min_new_tokens = int64_t(draw(100));
        if (draw(5) == 0) sampling.suppress_tokens = {int32_t(draw(40))};
        if (draw(5) == 0) sampling.forced_eos_token_id = {int32_t(draw(40))};
        if (draw(8) == 0) sampling.no_repeat_ngram_size = 4;
        requests.push_back(opened.session->submit(prompt, sampling));
      }
      const auto plain = open(limits, 0);
      for (size_t i = 0; i < requests.size(); ++i) {
        CHECK(requests[i]->wait(60));
        const auto expected =
            plain.session->generate(std::vector<Ids>{prompts[i]}, samplings[i])[0];
        for (size_t j = 0; j < expected.size(); ++j) {
          check_same(requests[i]->result(j), expected[j]);
        }
        const GenerationUsage usage = requests[i]->usage();
        CHECK(usage.accepted_tokens <= usage.drafted_tokens);
        const bool may_draft =
            samplings[i].repetition_penalty == 1 && samplings[i].no_repeat_ngram_size == 0;
        CHECK(may_draft || usage.drafted_tokens == 0);
      }
    }
    const GenerationStats stats = opened.session->stats();
    CHECK(stats.accepted_tokens > 1000 && stats.pages_used == 0);
    CHECK(stats.steps < stats.new_tokens);
  }
}

TEST(drafts_end_where_a_text_ends) {
  const RunnerLimits limits{40, 300, 20, 64, 2};
  const Ids prompt{1, 10, 33, 34, 1, 10};  // each token is followed by 7 times it and 3
  for (const bool by_model : {false, true}) {
    for (int64_t most = 1; most < 40; ++most) {
      const Opened opened = open(limits, 8, by_model);
      Sampling sampling;
      sampling.max_new_tokens = most;
      sampling.logprobs = 2;
      const auto alone = generate_alone({40, kRepeats}, prompt, sampling, 0, limits.max_context);
      check_same(opened.session->generate(std::vector<Ids>{prompt}, sampling)[0][0], alone);
      if (most < 4) continue;
      // The token in the middle of it ends the text.
      sampling.stop_ids = {alone.ids[size_t(most / 2)]};
      check_same(opened.session->generate(std::vector<Ids>{prompt}, sampling)[0][0],
                 generate_alone({40, kRepeats}, prompt, sampling, 0, limits.max_context));
    }
    // Generates up to the end of the context.
    Sampling open_end;
    const Opened opened = open(limits, 8, by_model);
    const auto found = opened.session->generate(std::vector<Ids>{prompt}, open_end)[0][0];
    check_same(found, generate_alone({40, kRepeats}, prompt, open_end, 0, limits.max_context));
    CHECK(found.ids.size() == 294 && opened.session->stats().accepted_tokens > 100);
  }
}

// The second turn of a conversation finds the pages of the first one's answer: exactly those that
// it finds without drafts, with what belongs there.
TEST(drafts_that_are_rejected_are_in_no_cached_page) {
  const RunnerLimits limits{40, 1000, 60, 200, 4};
  for (const bool by_model : {false, true}) {
    for (const uint64_t flaw : {0, 3}) {
      const Opened drafting = open(limits, 8, by_model, flaw);
      const Opened plain = open(limits, 0);
      Sampling sampling;
      sampling.max_new_tokens = 250;
      sampling.temperature = 1;
      sampling.seed = 4;
      sampling.logprobs = 0;
      Ids prompt(70, 3);
      for (int turn = 0; turn < 3; ++turn) {
        const auto expected = plain.session->generate(std::vector<Ids>{prompt}, sampling)[0][0];
        check_same(drafting.session->generate(std::vector<Ids>{prompt}, sampling)[0][0], expected);
        prompt.insert(prompt.end(), expected.ids.begin(), expected.ids.end());
        prompt.push_back(1);
      }
      const GenerationStats found = drafting.session->stats();
      const GenerationStats wanted = plain.session->stats();
      CHECK(found.drafted_tokens > 100);
      // The draft model may not have computed the last drafts that were accepted.
      const int64_t missing = wanted.prefix_hit_tokens - found.prefix_hit_tokens;
      CHECK(missing >= 0 && missing <= (by_model ? 2 * kPageTokens : 0));
      CHECK(wanted.pages_cached - found.pages_cached <= (by_model ? 3 : 0));
    }
  }
}

// A draft model that is the model itself drafts what comes, whatever becomes of pages.
TEST(drafts_of_the_same_model_are_all_accepted) {
  const RunnerLimits limits{40, 1000, 26, 100, 8};
  const Opened opened = open(limits, 5, true);
  Sampling sampling;
  sampling.temperature = 1;
  sampling.seed = 9;
  sampling.max_new_tokens = 300;
  sampling.logprobs = 1;
  std::vector<Ids> prompts;
  for (int32_t i = 0; i < 12; ++i) prompts.emplace_back(size_t(30 + 40 * (i % 3)), i % 4);
  const auto found = opened.session->generate(prompts, sampling);
  for (size_t i = 0; i < prompts.size(); ++i) {
    check_same(found[i][0], generate_alone({40, kRepeats}, prompts[i], sampling, 0, 1000));
  }
  const GenerationStats stats = opened.session->stats();
  CHECK(stats.preemptions > 0 && stats.prefix_hit_tokens > 0);
  CHECK(stats.drafted_tokens > 1000 && stats.accepted_tokens == stats.drafted_tokens);
}

// Pages of a request that drafts nothing hold nothing of the draft model.
TEST(drafts_share_pages_with_what_drafts) {
  const RunnerLimits limits{40, 1000, 60, 100, 4};
  const Opened opened = open(limits, 5, true);
  Sampling sampling;
  sampling.max_new_tokens = 20;
  const std::vector<Ids> prompts{Ids(150, 3)};
  std::vector<int64_t> hits;
  for (const int64_t draft_tokens : {0, 5, 5, 0}) {
    sampling.draft_tokens = draft_tokens;
    opened.session->generate(prompts, sampling);
    hits.push_back(opened.session->stats().prefix_hit_tokens);
  }
  CHECK((hits == std::vector<int64_t>{0, 0, 128, 256}));
  const GenerationStats stats = opened.session->stats();
  CHECK(stats.drafted_tokens > 10 && stats.accepted_tokens == stats.drafted_tokens);
}

TEST(drafts_end_with_the_context_of_the_draft_model) {
  const RunnerLimits limits{40, 600, 40, 100, 2};
  const Opened opened = open(limits, 5, true, 0, 200);
  Sampling sampling;
  sampling.max_new_tokens = 400;
  const Ids prompt{1, 2, 3};
  const auto alone = generate_alone({40, kRepeats}, prompt, sampling, 0, 600);
  check_same(opened.session->generate(std::vector<Ids>{prompt}, sampling)[0][0], alone);
  const GenerationStats stats = opened.session->stats();
  CHECK(stats.accepted_tokens > 100 && stats.accepted_tokens < 200);
  CHECK(stats.pages_cached == 402 / kPageTokens);  // also those behind it
}

TEST(drafts_take_no_page_from_others) {
  const RunnerLimits limits{40, 1000, 4, 200, 2};
  const GenerationOptions options = options_of(limits, 8, false);
  Scheduler scheduler(limits, options);
  Sampling sampling;
  sampling.max_new_tokens = 60;
  scheduler.add(make_job(Ids(60, 1), sampling, limits, options));
  scheduler.add(make_job(Ids(100, 2), sampling, limits, options));
  Sequence& first = scheduler.jobs()[0]->sequences[0];
  Sequence& second = scheduler.jobs()[1]->sequences[0];
  const auto step = [&] {
    const Step planned = scheduler.plan();
    scheduler.commit();
    return planned;
  };
  const auto grow_to = [](Sequence& sequence, int64_t size) {
    sequence.tokens.resize(size_t(size), sequence.tokens[0]);
    sequence.computed = sequence.committed = size - 1;
  };
  CHECK(step().sequences[1].drafts == 0);  // prompts
  grow_to(first, 62);
  grow_to(second, 129);
  // Four drafts are wanted. The last free page goes to the second, for the token that it has: the
  // first has two places left.
  const Step planned = step();
  CHECK(planned.sequences.size() == 2 && planned.num_tokens == 8);
  CHECK(planned.sequences[0].drafts == 2 && planned.sequences[0].ids.size() == 3);
  CHECK(planned.sequences[1].drafts == 4 && planned.sequences[1].pages.size() == 3);
  CHECK(scheduler.stats().preemptions == 0);
  scheduler.complete_drafts(first, 2, 0);
  CHECK(first.computed == 62 && first.pages.size() == 1);
  // Drafts go beyond the page where one is free; pages that they do not reach are given back.
  scheduler.finish(second);
  grow_to(first, 63);
  first.speculation->length = DraftLength(8, false);
  CHECK(step().sequences[0].drafts == 4 && first.pages.size() == 2);
  scheduler.complete_drafts(first, 4, 0);
  CHECK(first.computed == 63 && first.pages.size() == 1);
  scheduler.check();
}

TEST(drafts_leave_full_steps_alone) {
  const RunnerLimits limits{40, 500, 200, 200, 40};
  const Opened opened = open(limits, 8);
  opened.runner->hold();
  Sampling sampling;
  sampling.max_new_tokens = 40;
  std::vector<std::shared_ptr<GenerationRequest>> requests;
  for (int32_t i = 0; i < 40; ++i) {
    requests.push_back(opened.session->submit(Ids{i, i, i, i}, sampling));
  }
  opened.runner->let_go();
  for (const auto& request : requests) request->wait();
  const GenerationStats stats = opened.session->stats();
  // Checks that none drafts as long as 32 run; all ended in the same step or nearly.
  CHECK(stats.drafted_tokens < 40);
  CHECK(opened.runner->overlapped > stats.steps / 2);  // none waits for drafts
}

// When others begin, so that more than 32 run, nobody runs ahead of drafts that are in flight.
TEST(drafts_in_flight_are_waited_for) {
  const RunnerLimits limits{40, 500, 300, 200, 40};
  Sampling sampling;
  sampling.max_new_tokens = 60;
  for (int64_t steps = 3; steps < 12; ++steps) {
    const Opened opened = open(limits, 8);
    opened.runner->hold();
    std::vector<Ids> prompts;
    std::vector<std::shared_ptr<GenerationRequest>> requests;
    const auto submit = [&](int32_t count) {
      for (int32_t i = 0; i < count; ++i) {
        prompts.push_back({i, 1, 10, 33, 34, 1, 10});
        requests.push_back(opened.session->submit(prompts.back(), sampling));
      }
    };
    submit(20);
    opened.runner->wait_held();
    opened.runner->let_go(steps);
    while (opened.session->stats().steps < steps) std::this_thread::yield();
    submit(20);
    opened.runner->let_go();
    for (size_t i = 0; i < prompts.size(); ++i) {
      CHECK(requests[i]->wait(60));
      check_same(requests[i]->result(),
                 generate_alone({40, kRepeats}, prompts[i], sampling, 0, limits.max_context));
    }
    CHECK(opened.session->stats().accepted_tokens > 20);
  }
}

TEST(drafts_are_asked_for_within_the_limits) {
  const RunnerLimits limits{40, 300, 20, 64, 2};
  Sampling sampling;
  sampling.max_new_tokens = 20;
  sampling.draft_tokens = 3;
  const Ids prompt{1, 10, 33, 34, 1, 10};
  CHECK_THROWS_WITH(
      open(limits, 0).session->submit(prompt, sampling),
      "draft_tokens is 3, expected 0 to 0: the session was loaded with draft_tokens 0");
  CHECK_THROWS_WITH(open(limits, 2).session->submit(prompt, sampling),
                    "draft_tokens is 3, expected 0 to 2");
  const Opened opened = open(limits, 8);
  sampling.draft_tokens = 0;
  opened.session->generate(std::vector<Ids>{prompt}, sampling);
  CHECK(opened.session->stats().drafted_tokens == 0);
}
