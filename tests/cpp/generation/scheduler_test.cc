// Tests the scheduler's decisions, step by step, without threads.
#include "generation/scheduler/scheduler.h"

#include <string>
#include <utility>
#include <vector>

#include "core/format.h"
#include "fake_runner.h"
#include "test.h"

using namespace packhorse;
using packhorse::test::FakeRunner;

namespace {

using State = Sequence::State;

GenerationOptions options_of(const RunnerLimits& limits, bool prefix_cache) {
  GenerationOptions options;
  options.max_tokens = limits.max_tokens;
  options.max_sequences = limits.max_sequences;
  options.prefix_cache = prefix_cache;
  return options;
}

// A step is built from what was at the same place in a step before, but says what its sequences are
// now.
void check_built(const PlannedStep& plan) {
  for (size_t i = 0; i < plan.parts.size(); ++i) {
    const SequenceSlice& step = plan.sequences[i];
    const Sequence& sequence = *plan.parts[i].sequence;
    const Job& job = *sequence.job;
    const StepSampler& sampler = step.sampler;
    CHECK(step.pages.data() == sequence.pages.data());
    CHECK(std::ssize(step.pages) == pages_of(step.kv_len()));
    CHECK(step.kv_len() == sequence.computed && step.sample == plan.parts[i].samples);
    CHECK(step.pending || step.ids.data() == sequence.tokens.data() + step.position);
    CHECK(step.targets.empty() || job.must_score());
    if (!step.sample) continue;
    CHECK(step.chosen == &sequence.chosen && step.top.data() == sequence.top.data());
    CHECK(sampler.sampling == &job.sampling && sampler.seed == job.seed);
    CHECK(sampler.stream == sequence.index && sampler.slot == sequence.slot);
    CHECK(sampler.prompt_tokens == job.prompt_tokens);
    CHECK(sampler.num_new_tokens + job.prompt_tokens == step.kv_len());
    CHECK(sampler.history.data() == sequence.tokens.data());
    CHECK(std::ssize(sampler.history) == sequence.size());
  }
}

// The scheduler and a runner, and what the engine does with the tokens, without ends.
struct Bench {
  RunnerLimits limits;
  GenerationOptions options;
  Scheduler scheduler;
  FakeRunner runner;

  explicit Bench(const RunnerLimits& of, bool prefix_cache = true)
      : limits(of), options(options_of(of, prefix_cache)), scheduler(of, options), runner(of) {}

  Job& add(size_t prompt_tokens, int64_t new_tokens, int32_t first = 0, Sampling sampling = {},
           std::vector<PromptContent> contents = {}) {
    std::vector<int32_t> ids(prompt_tokens, 7);
    if (!ids.empty()) ids[0] = first;
    sampling.max_new_tokens = new_tokens;
    auto job = make_job(ids, sampling, limits, options);
    job->contents = std::move(contents);
    Job& added = *job;
    scheduler.add(std::move(job));
    return added;
  }

  // One step; returns "first token of the prompt: position+count" of each of its sequences.
  std::string step() {
    const Step step = scheduler.plan();
    if (step.sequences.empty()) return "nothing";
    check_built(scheduler.newest());
    runner.run(step);
    std::string planned;
    const PlannedStep& done = scheduler.commit();
    for (size_t i = 0; i < done.parts.size(); ++i) {
      const SequenceSlice& part = done.sequences[i];
      Sequence& sequence = *done.parts[i].sequence;
      planned +=
          concat(i == 0 ? "" : " ", sequence.tokens[0], ":", part.position, "+", part.ids.size());
      if (!part.sample) continue;
      sequence.tokens.push_back(sequence.chosen.id);
      if (sequence.size() == sequence.job->max_size) scheduler.finish(sequence);
    }
    scheduler.check();
    scheduler.remove_finished();
    return planned;
  }
};

}  // namespace

TEST(scheduler_cuts_prompts_into_the_budget_behind_decodes) {
  Bench bench({40, 1000, 20, 16, 4});
  bench.add(10, 5, 1);
  bench.add(20, 3, 2);
  bench.add(4, 2, 3);
  CHECK(bench.step() == "1:0+10 2:0+6");
  CHECK(bench.step() == "1:10+1 2:6+14 3:0+1");  // 3 gets what is left
  CHECK(bench.step() == "1:11+1 2:20+1 3:1+3");
  CHECK(bench.step() == "1:12+1 2:21+1 3:4+1");
  CHECK(bench.step() == "1:13+1");
  CHECK(bench.step() == "nothing");
  CHECK(bench.scheduler.stats().finished_requests == 3);
}

// Beside sequences that wait for a token, prompts get 8 tokens of a step.
constexpr RunnerLimits kChunks{.vocab_size = 40,
                               .max_context = 1000,
                               .num_pages = 20,
                               .max_tokens = 100,
                               .max_sequences = 4,
                               .max_chunk = 8};

TEST(scheduler_gives_prompts_less_of_a_step_beside_decodes) {
  Bench bench(kChunks);
  bench.add(90, 4, 1);
  bench.add(20, 2, 2);
  bench.add(4, 2, 3);
  CHECK(bench.step() == "1:0+90 2:0+10");  // nobody waits
  CHECK(bench.step() == "1:90+1 2:10+8");
  CHECK(bench.step() == "1:91+1 2:18+2 3:0+4");
  CHECK(bench.step() == "1:92+1 2:20+1 3:4+1");
  CHECK(bench.step() == "nothing");
  Bench other({.vocab_size = 40,
               .max_context = 1000,
               .num_pages = 20,
               .max_tokens = 6,
               .max_sequences = 6,
               .max_chunk = 8});
  other.add(4, 3, 1);
  CHECK(other.step() == "1:0+4");
  other.add(9, 2, 2);
  CHECK(other.step() == "1:4+1 2:0+5");  // the budget is smaller than the chunk
}

TEST(scheduler_gives_prompts_less_of_a_step_that_decodes_sit_out) {
  Bench bench(kChunks);
  Sampling beams;
  beams.num_beams = 2;
  bench.add(4, 5, 1, beams);  // its second step needs the host to see the first one's tokens
  CHECK(bench.scheduler.plan().num_tokens == 4);
  bench.add(90, 2, 2);
  const Step beside = bench.scheduler.plan();
  CHECK(beside.sequences.size() == 1 && beside.sequences[0].ids.size() == 8);
  Bench last(kChunks);
  last.add(4, 1, 1);  // it waits for nothing behind its only token
  CHECK(last.scheduler.plan().num_tokens == 4);
  last.add(90, 2, 2);
  CHECK(last.scheduler.plan().num_tokens == 90);
}

TEST(scheduler_starts_in_the_order_of_arrival) {
  Bench bench({40, 1000, 4, 300, 2});
  bench.add(100, 2, 1);  // 2 pages
  bench.add(150, 2, 2);  // 3 pages: not there
  bench.add(5, 2, 3);    // would fit, but came later
  CHECK(bench.step() == "1:0+100");
  CHECK(bench.scheduler.stats().queued == 2 && bench.scheduler.num_unstarted() == 2);
  CHECK(bench.step() == "1:100+1");
  CHECK(bench.step() == "2:0+150");  // a page is kept for what runs
  CHECK(bench.step() == "2:150+1");
  CHECK(bench.step() == "3:0+5");
}

TEST(scheduler_preempts_the_youngest_and_loses_nothing) {
  Bench bench({40, 1000, 4, 300, 3});
  bench.add(60, 80, 1);
  bench.add(60, 80, 2);
  CHECK(bench.step() == "1:0+60 2:0+60");
  for (int i = 0; i < 4; ++i) CHECK(bench.step() == concat("1:", 60 + i, "+1 2:", 60 + i, "+1"));
  CHECK(bench.step() == "1:64+1 2:64+1");  // the second page of each
  for (int i = 65; i < 128; ++i) CHECK(bench.step() == concat("1:", i, "+1 2:", i, "+1"));
  CHECK(bench.scheduler.stats().preemptions == 0 && bench.scheduler.stats().pages_free == 0);
  CHECK(bench.step() == "1:128+1");  // its third page: 2 gives way
  const GenerationStats stats = bench.scheduler.stats();
  CHECK(stats.preemptions == 1 && stats.queued == 1 && stats.running == 1);
  CHECK(stats.pages_used == 3 && stats.pages_cached == 1);
  for (int i = 129; i < 139; ++i) CHECK(bench.step() == concat("1:", i, "+1"));
  // 2 finds its first page, and computes the rest, its own new tokens too.
  CHECK(bench.step() == "2:64+65");
  CHECK(bench.scheduler.stats().prefix_hit_tokens == 64);
  CHECK(bench.step() == "2:129+1");
}

TEST(scheduler_shares_pages_between_sequences_of_a_request) {
  for (const bool prefix_cache : {true, false}) {
    Bench bench({40, 1000, 20, 100, 5}, prefix_cache);
    Sampling sampling;
    sampling.n = 3;
    sampling.temperature = 1;
    sampling.seed = 1;
    bench.add(140, 3, 1, sampling);
    bench.add(10, 9, 2);
    CHECK(bench.step() == "1:0+100");
    CHECK(bench.step() == "1:100+40 2:0+10");  // the others of 1 wait for its pages
    CHECK(bench.step() == "1:140+1 2:10+1 1:128+12 1:128+12");
    CHECK(bench.scheduler.stats().pages_used == 3 + 1 + 1 + 1);
    // Adds the first prompt once more: with a prefix cache its whole page is found again.
    bench.add(140, 3, 1);
    bench.step();
    CHECK(bench.scheduler.stats().prefix_hit_tokens == (prefix_cache ? 3 : 2) * 128);
    while (bench.step() != "nothing") {
    }
    CHECK(bench.scheduler.stats().pages_cached == (prefix_cache ? 2 : 0));
  }
}

TEST(scheduler_shares_pages_between_requests_of_one_salt) {
  Bench bench({40, 1000, 20, 200, 4});
  for (const int64_t known : {0, 128}) {
    for (const int64_t salt : {int64_t{0}, int64_t{1}, int64_t{2}, kMostCacheSalt}) {
      const int64_t before = bench.scheduler.stats().prefix_hit_tokens;
      Sampling sampling;
      sampling.cache_salt = salt;
      bench.add(140, 2, 1, sampling);
      while (bench.step() != "nothing") {
      }
      CHECK(bench.scheduler.stats().prefix_hit_tokens - before == known);
    }
  }
}

TEST(scheduler_keeps_contents_of_equal_ids_apart) {
  // Prompts of 200 equal ids, of which 100 from the 40th on are an image, and 30 from the 140th on
  // another one: pages are shared up to the one in which images begin to differ.
  const auto digest = [](uint8_t of) { return ContentDigest{of, 1}; };
  const auto prompt = [&](uint8_t first, uint8_t second) {
    return std::vector<PromptContent>{{40, 100, digest(first)}, {140, 30, digest(second)}};
  };
  Bench bench({40, 1000, 40, 200, 4});
  const auto hits = [&](const std::vector<PromptContent>& contents) {
    const int64_t before = bench.scheduler.stats().prefix_hit_tokens;
    bench.add(200, 2, 1, {}, contents);
    while (bench.step() != "nothing") {
    }
    return bench.scheduler.stats().prefix_hit_tokens - before;
  };
  CHECK(hits(prompt(1, 2)) == 0);
  CHECK(hits(prompt(1, 2)) == 192);
  CHECK(hits(prompt(1, 3)) == 128);  // the third page holds 12 rows of the first image, too
  CHECK(hits(prompt(3, 2)) == 0);
  CHECK(hits({}) == 0);  // no image at all
  CHECK(hits({}) == 192);
  CHECK(hits({{41, 99, digest(1)}, {140, 30, digest(2)}}) == 0);
  CHECK(hits(prompt(3, 2)) == 192);
}

TEST(content_numbers_are_never_given_twice) {
  ContentNumbers numbers(2);
  const auto number = [&](uint8_t of) { return numbers.number(ContentDigest{of}).value(); };
  CHECK(number(1) == -2 && number(2) == -3 && number(1) == -2);
  CHECK(number(3) == -4);  // forgets 2
  CHECK(number(1) == -2 && number(2) == -5);
  CHECK(number(3) == -6);
}

TEST(contents_lie_in_the_prompt) {
  check_contents(std::vector<PromptContent>{{0, 3, {}}, {3, 1, {}}}, 4);
  const std::vector<std::vector<PromptContent>> wrong = {
      {{-1, 2, {}}}, {{0, 0, {}}}, {{3, 2, {}}}, {{0, 3, {}}, {2, 1, {}}}, {{5, 1, {}}}};
  for (const std::vector<PromptContent>& contents : wrong) {
    CHECK_THROWS_WITH(check_contents(contents, 4), "contents[");
  }
}

TEST(scheduler_computes_prompts_whole_for_their_logprobs) {
  Bench bench({40, 1000, 20, 200, 4});
  bench.add(140, 2, 1);
  while (bench.step() != "nothing") {
  }
  Sampling sampling;
  sampling.prompt_logprobs = 0;
  bench.add(140, 2, 1, sampling);
  CHECK(bench.step() == "1:0+140");
  CHECK(bench.scheduler.stats().prefix_hit_tokens == 0);
  bench.step();
  bench.add(140, 2, 1);
  CHECK(bench.step() == "1:128+12");
}

TEST(scheduler_always_computes_the_last_token) {
  Bench bench({40, 1000, 20, 200, 4});
  bench.add(128, 2, 1);
  while (bench.step() != "nothing") {
  }
  bench.add(128, 1, 1);
  CHECK(bench.step() == "1:64+64");
}

TEST(scheduler_keeps_its_counts) {
  // PagePool::check after each step, over prompts that begin alike and a cache that is too small.
  for (const bool prefix_cache : {true, false}) {
    Bench bench({40, 400, 9, 30, 5}, prefix_cache);
    for (uint64_t i = 0; i < 120; ++i) {
      Sampling sampling;
      sampling.n = i % 7 == 0 ? 3 : 1;
      if (i % 5 == 0) sampling.prompt_logprobs = 1;
      bench.add(1 + test::mix(1, i) % 200, 1 + int64_t(test::mix(2, i) % 150), int32_t(i % 3),
                sampling);
      // At times one that runs or waits ends early, as a cancelled one does.
      if (i % 11 == 0) {
        for (Sequence& sequence : bench.scheduler.jobs().front()->sequences) {
          bench.scheduler.finish(sequence);
        }
      }
      for (int steps = 0; steps < 20; ++steps) bench.step();
    }
    while (bench.step() != "nothing") {
    }
    const GenerationStats stats = bench.scheduler.stats();
    CHECK(stats.finished_requests == 120 && stats.pages_used == 0 && stats.preemptions > 0);
    CHECK(stats.prefix_hit_tokens > 0 && (stats.pages_cached > 0) == prefix_cache);
  }
}

TEST(scheduler_publishes_what_was_collected) {
  Bench bench({40, 1000, 20, 48, 4});
  const Job& job = bench.add(100, 5, 1);
  const auto is_planned = [&](const char* expected) {
    const Step step = bench.scheduler.plan();
    bench.runner.launch(step);
    const SequenceSlice& sequence = step.sequences.front();
    CHECK(concat(sequence.position, "+", sequence.ids.size(), sequence.pending ? " pending" : "") ==
          expected);
  };
  const auto collect = [&] {
    bench.runner.wait();
    bench.scheduler.commit();
    bench.scheduler.check();
  };
  is_planned("0+48");
  is_planned("48+48");  // fills a page
  CHECK(bench.scheduler.num_in_flight() == 2);
  collect();
  CHECK(job.sequences[0].computed == 96 && job.sequences[0].committed == 48);
  CHECK(job.sequences[0].published == 0);
  is_planned("96+4");
  collect();
  CHECK(job.sequences[0].published == 1);
  is_planned("100+1 pending");
  collect();
  // A step that fails leaves nothing to others but what was collected before.
  bench.scheduler.finish(bench.scheduler.jobs().front()->sequences[0]);
  bench.scheduler.drop_oldest();
  bench.runner.wait();
  bench.scheduler.remove_finished();
  bench.scheduler.check();
  CHECK(bench.scheduler.jobs().empty() && bench.scheduler.stats().pages_cached == 1);
}
