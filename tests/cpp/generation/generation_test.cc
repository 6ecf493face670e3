// The engine, over a model that shows every wrong page.
#include "packhorse/generation.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "fake_runner.h"
#include "forked.h"
#include "generation/generation_session.h"
#include "test.h"

using namespace packhorse;
using packhorse::test::FakeModel;
using packhorse::test::FakeRunner;
using packhorse::test::generate_alone;

namespace {

using Ids = std::vector<int32_t>;

struct Room {
  RunnerLimits limits{40, 1000, 20, 48, 6};
  GenerationOptions options;
  FakeRunner* runner = nullptr;
  std::shared_ptr<GenerationSession> session;

  explicit Room(int64_t num_pages = 20, int64_t max_sequences = 6, bool prefix_cache = true,
                int64_t max_queue = 100) {
    limits.num_pages = num_pages;
    limits.max_sequences = max_sequences;
    options.max_sequences = max_sequences;
    options.max_tokens = limits.max_tokens;
    options.prefix_cache = prefix_cache;
    options.max_queue = max_queue;
    auto owned = std::make_unique<FakeRunner>(limits);
    runner = owned.get();
    session = make_generation_session(std::move(owned), options);
  }
  ~Room() { runner->let_go(); }
  GeneratedSequence alone(const Ids& prompt, const Sampling& sampling, uint64_t stream = 0) const {
    return generate_alone({limits.vocab_size}, prompt, sampling, stream, limits.max_context);
  }
};

// A runner that outlives the session which has it.
class LentRunner final : public StepRunner {
 public:
  explicit LentRunner(StepRunner& runner) : runner_(runner) {}
  const RunnerLimits& limits() const override { return runner_.limits(); }
  const GenerationMemoryPlan& memory_plan() const override { return runner_.memory_plan(); }
  bool overlaps() const override { return runner_.overlaps(); }
  void launch(const Step& step) override { runner_.launch(step); }
  void wait() override { runner_.wait(); }

 private:
  StepRunner& runner_;
};

Ids prompt_of(size_t length, uint64_t seed = 1) {
  Ids ids(length);
  for (size_t i = 0; i < length; ++i) ids[i] = int32_t(test::mix(seed, i) % 40);
  return ids;
}

Sampling new_tokens(int64_t count) {
  Sampling sampling;
  sampling.max_new_tokens = count;
  return sampling;
}

bool same(const GeneratedSequence& a, const GeneratedSequence& b) {
  const auto pairs = [](const GeneratedSequence& s) {
    std::vector<std::pair<int32_t, float>> result;
    for (const TokenLogprob& top : s.top_logprobs) result.emplace_back(top.id, top.logprob);
    return result;
  };
  return a.ids == b.ids && a.logprobs == b.logprobs && a.finish_reason == b.finish_reason &&
         pairs(a) == pairs(b);
}

}  // namespace

TEST(generation_equals_lone_runs) {
  Room room;
  std::vector<Ids> prompts;
  for (const size_t length : {1, 2, 63, 64, 65, 127, 128, 129, 300, 300, 5}) {
    prompts.push_back(prompt_of(length, length));
  }
  Sampling sampling = new_tokens(70);
  sampling.logprobs = 3;
  const auto results = room.session->generate(prompts, sampling);
  CHECK(results.size() == prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    CHECK(results[i].size() == 1 && same(results[i][0], room.alone(prompts[i], sampling)));
  }
  const GenerationStats stats = room.session->stats();
  CHECK(stats.running == 0 && stats.queued == 0 && stats.pages_used == 0);
  CHECK(stats.pages == 20 && stats.pages_cached + stats.pages_free == 20);
  CHECK(room.session->generate({}, sampling).empty());
}

TEST(generation_steps_see_all_prompts_of_a_call) {
  Room room;
  for (int round = 0; round < 20; ++round) {
    std::vector<Ids> prompts;
    for (size_t i = 0; i < 4; ++i) {
      prompts.push_back(prompt_of(10, static_cast<uint64_t>(round) * 4 + i));
    }
    const int64_t before = room.session->stats().steps;
    CHECK(room.session->generate(prompts, new_tokens(1)).size() == prompts.size());
    CHECK(room.session->stats().steps == before + 1);
  }
}

TEST(generation_streams_tokens) {
  Room room;
  const Ids prompt = prompt_of(30);
  const Sampling sampling = new_tokens(25);
  const auto request = room.session->submit(prompt, sampling);
  Ids ids;
  for (Ids fresh; !(fresh = request->next()).empty();)
    ids.insert(ids.end(), fresh.begin(), fresh.end());
  CHECK(ids == room.alone(prompt, sampling).ids);
  CHECK(request->finish_reason() == FinishReason::kLength && request->wait(0));
  CHECK(request->usage().prompt_tokens == 30 && request->usage().new_tokens == 25);
  CHECK(request->result().ids == ids && request->num_sequences() == 1);
  CHECK(std::string(name_of(request->finish_reason())) == "length");
  CHECK_THROWS_WITH(request->next(1), "sequence is 1, expected 0 to 0");
}

TEST(generation_waits_no_longer_than_asked) {
  Room room;
  room.runner->hold();
  const auto request = room.session->submit(prompt_of(3), new_tokens(2));
  CHECK(request->next(0, 0.001).empty() && request->finish_reason() == FinishReason::kNone);
  CHECK(!request->wait(0));
  room.runner->let_go();
  CHECK(request->wait() && request->next().size() == 2);
}

TEST(generation_ends_where_its_listener_drops_the_session) {
  GenerationOptions options;
  options.max_tokens = 48;
  options.max_sequences = 6;
  const RunnerLimits limits{40, 1000, 20, 48, 6};
  FakeRunner runner(limits);
  runner.hold();  // until somebody listens
  auto session = make_generation_session(std::make_unique<LentRunner>(runner), options);
  const auto request = session->submit(prompt_of(3), new_tokens(400));
  const auto waiting = session->submit(prompt_of(4), new_tokens(400));
  const auto here = std::this_thread::get_id();
  std::string refused;
  request->set_listener([&] {
    if (std::this_thread::get_id() == here || session == nullptr) return;
    try {
      waiting->wait();
    } catch (const RuntimeError& error) {
      refused = error.what();
    }
    session.reset();
  });
  runner.let_go();
  CHECK(request->wait(10));
  CHECK(waiting->wait(10));
  request->set_listener({});  // it may be called once more, after those who wait
  CHECK(refused.find("of its own session") != std::string::npos);
  CHECK(request->finish_reason() == FinishReason::kCancelled);
}

TEST(generation_tells_its_listener) {
  Room room;
  const auto request = room.session->submit(prompt_of(3), new_tokens(20));
  std::atomic<int> calls = 0;
  std::atomic<bool> ended = false;
  request->set_listener([&] {
    ++calls;
    if (request->finish_reason() != FinishReason::kNone) ended = true;
  });
  while (!ended) std::this_thread::yield();
  CHECK(calls >= 1);
  request->set_listener({});
}

TEST(generation_draws_by_the_seed_alone) {
  Room room;
  Sampling sampling = new_tokens(30);
  sampling.temperature = 0.9f;
  sampling.seed = 5;
  sampling.n = 4;
  const Ids prompt = prompt_of(100);
  const auto first = room.session->generate(std::vector<Ids>{prompt, prompt_of(80)}, sampling);
  const auto second = room.session->generate(std::vector<Ids>{prompt}, sampling);
  for (size_t i = 0; i < 4; ++i) {
    CHECK(same(first[0][i], room.alone(prompt, sampling, i)) && same(first[0][i], second[0][i]));
    CHECK(i == 0 || first[0][i].ids != first[0][0].ids);
  }
  sampling.seed.reset();
  sampling.n = 1;
  const auto other = room.session->generate(std::vector<Ids>{prompt, prompt}, sampling);
  CHECK(other[0][0].ids != other[1][0].ids);
}

TEST(generation_ends_at_stop_ids) {
  Room room;
  const Ids prompt = prompt_of(10);
  const Ids free = room.alone(prompt, new_tokens(40)).ids;
  Sampling sampling = new_tokens(40);
  sampling.stop_ids = {free[7]};
  const auto result = room.session->generate(std::vector<Ids>{prompt}, sampling)[0][0];
  CHECK(same(result, room.alone(prompt, sampling)));
  CHECK(result.finish_reason == FinishReason::kStop && result.ids.back() == free[7]);

  // The session's own, unless they are ignored.
  GenerationOptions options = room.options;
  options.eos_ids = {free[7]};
  const auto session = make_generation_session(std::make_unique<FakeRunner>(room.limits), options);
  CHECK(session->generate(std::vector<Ids>{prompt}, new_tokens(40))[0][0].ids == result.ids);
  Sampling ignoring = new_tokens(40);
  ignoring.ignore_eos = true;
  CHECK(session->generate(std::vector<Ids>{prompt}, ignoring)[0][0].ids == free);
}

TEST(generation_ends_with_the_context_or_the_cache) {
  Room room(3);
  CHECK(room.session->max_context() == 192);
  const auto result = room.session->generate(std::vector<Ids>{prompt_of(100)}, Sampling())[0][0];
  CHECK(result.ids.size() == 93 && result.finish_reason == FinishReason::kLength);
  Room wide(40);
  wide.limits.max_context = 1000;
  CHECK(wide.session->generate(std::vector<Ids>{prompt_of(990)}, new_tokens(50))[0][0].ids.size() ==
        10);
  CHECK(wide.session->generate(std::vector<Ids>{prompt_of(999)}, Sampling())[0][0].ids.size() == 1);
  CHECK_THROWS_WITH(wide.session->submit(prompt_of(1000), Sampling()),
                    "the prompt has 1000 tokens, expected at most 999");
}

TEST(generation_refuses_what_can_never_run) {
  Room room(3);
  CHECK_THROWS_WITH(room.session->submit(prompt_of(150), new_tokens(50)),
                    "the request needs 256 tokens of cache");
  CHECK_THROWS_WITH(room.session->submit(prompt_of(150), new_tokens(50)), "the cache holds 192");
  CHECK_THROWS_WITH(room.session->submit(prompt_of(193), Sampling()), "the cache holds 192");
  room.session->generate(std::vector<Ids>{prompt_of(150)},
                         new_tokens(43));  // the last is not computed
  CHECK_THROWS_WITH(room.session->submit({}, Sampling()), "the prompt is empty");
  CHECK_THROWS_WITH(room.session->submit(Ids{3, 40}, Sampling()), "ids[1] = 40, expected 0 to 39");
  const auto refuses = [&](auto change, const char* part) {
    Sampling sampling;
    change(sampling);
    CHECK_THROWS_WITH(room.session->submit(Ids{1}, sampling), part);
  };
  refuses([](Sampling& s) { s.max_new_tokens = -1; }, "max_new_tokens is -1");
  refuses([](Sampling& s) { s.temperature = -1; }, "temperature is -1, expected 0 or more");
  refuses([](Sampling& s) { s.temperature = NAN; }, "temperature is nan");
  refuses([](Sampling& s) { s.top_k = -1; }, "top_k is -1");
  refuses([](Sampling& s) { s.top_p = 0; }, "top_p is 0");
  refuses([](Sampling& s) { s.min_p = 2; }, "min_p is 2");
  refuses([](Sampling& s) { s.repetition_penalty = 0; }, "repetition_penalty is 0");
  refuses([](Sampling& s) { s.logit_bias = {{40, 1.0f}}; }, "logit_bias is 40");
  refuses([](Sampling& s) { s.logit_bias = {{4, INFINITY}}; }, "a bias of logit_bias is inf");
  refuses([](Sampling& s) { s.allowed_ids = {-2}; }, "allowed_ids is -2");
  refuses([](Sampling& s) { s.stop_ids = {99}; }, "stop_ids is 99");
  refuses([](Sampling& s) { s.deadline_s = 0; }, "deadline_s is 0");
  refuses([](Sampling& s) { s.logprobs = 41; }, "logprobs is 41, expected 0 to 40");
  refuses([](Sampling& s) { s.prompt_logprobs = -1; }, "prompt_logprobs is -1");
  refuses([](Sampling& s) { s.n = 0; }, "n is 0");
  refuses([](Sampling& s) { s.num_beams = 7; }, "num_beams is 7, expected at most max_sequences 6");
  refuses([](Sampling& s) { s.num_beams = 2, s.n = 3; }, "n is 3, expected at most num_beams 2");
  refuses([](Sampling& s) { s.num_beams = 2, s.temperature = 1; }, "temperature is 1, expected 0");
  CHECK(room.session->stats().finished_requests == 1);
}

TEST(generation_gives_logprobs_of_the_prompt) {
  Room room;
  const Ids prompt = prompt_of(200);
  room.session->generate(std::vector<Ids>{prompt}, new_tokens(1));  // fills the cache
  Sampling sampling = new_tokens(0);
  sampling.prompt_logprobs = 2;
  const auto request = room.session->submit(prompt, sampling);
  CHECK(request->wait() && request->result().ids.empty());
  CHECK(request->finish_reason() == FinishReason::kLength);
  const PromptLogprobs found = request->prompt_logprobs();
  CHECK(found.logprobs.size() == 199 && found.top.size() == 398);
  uint64_t sum = 0;
  for (size_t i = 0; i + 1 < prompt.size(); ++i) {
    sum += FakeModel::key(sum, prompt[i], int64_t(i));
    const auto logprobs = FakeModel().logprobs(sum, 0);
    CHECK(found.logprobs[i] == logprobs[size_t(prompt[i + 1])]);
    CHECK(found.top[2 * i].logprob == *std::ranges::max_element(logprobs));
    CHECK(found.top[2 * i].logprob >= found.top[2 * i + 1].logprob);
  }
  CHECK(request->usage().cached_prompt_tokens == 0);
  const auto plain = room.session->submit(prompt, new_tokens(2));
  CHECK(plain->wait() && plain->usage().cached_prompt_tokens == 192);
  CHECK(plain->prompt_logprobs().logprobs.empty());
}

TEST(generation_is_cancelled) {
  Room room;
  room.runner->hold();
  const auto first = room.session->submit(prompt_of(50), new_tokens(500));
  room.runner->wait_held();
  std::vector<std::shared_ptr<GenerationRequest>> others;
  for (int i = 0; i < 8; ++i) others.push_back(room.session->submit(prompt_of(9), new_tokens(500)));
  others[7]->cancel();  // in the queue
  room.runner->let_go();
  CHECK(!first->next().empty());
  first->cancel();
  CHECK(first->wait() && first->finish_reason() == FinishReason::kCancelled);
  CHECK(others[7]->wait() && others[7]->finish_reason() == FinishReason::kCancelled);
  const Ids had = first->result().ids;
  const Ids all = room.alone(prompt_of(50), new_tokens(500)).ids;
  CHECK(had.size() < 500 && std::equal(had.begin(), had.end(), all.begin()));
  for (const auto& request : others) request->cancel();
  for (const auto& request : others) CHECK(request->wait());
  first->cancel();
  CHECK(same(room.session->generate(std::vector<Ids>{prompt_of(70)}, new_tokens(3))[0][0],
             room.alone(prompt_of(70), new_tokens(3))));
}

TEST(generation_keeps_deadlines) {
  Room room;
  Sampling sampling = new_tokens(900);
  sampling.deadline_s = 1e-9;
  const auto queued = room.session->submit(prompt_of(5), sampling);
  CHECK(queued->wait() && queued->finish_reason() == FinishReason::kDeadline);
  CHECK(queued->result().ids.empty());
  room.runner->hold();
  sampling.deadline_s = 0.02;
  const auto running = room.session->submit(prompt_of(5), sampling);
  room.runner->let_go(1);
  CHECK(!running->next().empty());
  std::this_thread::sleep_for(std::chrono::milliseconds(25));
  room.runner->let_go();
  CHECK(running->wait() && running->finish_reason() == FinishReason::kDeadline);
}

TEST(generation_bounds_its_queue) {
  Room room(20, 1, true, 2);
  room.runner->hold();
  std::vector<std::shared_ptr<GenerationRequest>> requests;
  requests.push_back(room.session->submit(prompt_of(5), new_tokens(3)));
  room.runner->wait_held();
  for (int i = 0; i < 2; ++i) requests.push_back(room.session->submit(prompt_of(5), new_tokens(3)));
  CHECK_THROWS_AS(RuntimeError, room.session->submit(prompt_of(5), new_tokens(3)),
                  "max_queue = 2 requests wait");
  CHECK_THROWS_AS(RuntimeError, room.session->submit(prompt_of(5), new_tokens(3), 0.005),
                  "within 0.005 seconds");
  std::thread late(
      [&] { requests.push_back(room.session->submit(prompt_of(5), new_tokens(3), 60)); });
  room.runner->let_go();
  late.join();
  for (const auto& request : requests) CHECK(request->wait());
  CHECK(room.session->generate(std::vector<Ids>(20, prompt_of(3)), new_tokens(2)).size() == 20);
}

TEST(generation_survives_failed_steps) {
  Room room;
  const Ids prompt = prompt_of(100);
  const auto good = room.session->generate(std::vector<Ids>{prompt}, new_tokens(20));
  for (const int when : {1, 2, 5, 70}) {
    room.runner->fail_in = when;
    const auto results = room.session->generate(
        std::vector<Ids>{prompt, prompt_of(90), prompt_of(150, 3)}, new_tokens(90));
    bool failed = false;
    for (const auto& result : results) {
      if (result[0].finish_reason != FinishReason::kError) continue;
      failed = true;
      CHECK(result[0].error == "a step failed: the fake device is lost");
    }
    CHECK(failed);
    CHECK(room.session->generate(std::vector<Ids>{prompt}, new_tokens(20))[0][0].ids ==
          good[0][0].ids);
  }
  CHECK(room.session->stats().pages_used == 0);
}

TEST(generation_ends_with_its_session) {
  std::shared_ptr<GenerationRequest> running, queued;
  {
    Room room(20, 1);
    room.runner->hold();
    running = room.session->submit(prompt_of(5), new_tokens(900));
    queued = room.session->submit(prompt_of(5), new_tokens(900));
    // Not as many steps as the request has tokens, however long this thread waits for its turn.
    room.runner->let_go(100);
    CHECK(!running->next().empty());
  }
  CHECK(running->wait(0) && running->finish_reason() == FinishReason::kCancelled);
  CHECK(queued->wait(0) && queued->finish_reason() == FinishReason::kCancelled);
  running->cancel();
  CHECK(std::string(name_of(queued->finish_reason())) == "cancelled");
}

TEST(generation_is_refused_after_a_fork) {
  Room room;
  const auto request = room.session->submit(prompt_of(5), new_tokens(2));
  CHECK(request->wait());
  test::check_forked([&] {
    int status = 0;
    const auto refused = [&](auto&& call) {
      try {
        call();
        status = 1;
      } catch (const RuntimeError& error) {
        if (error.message().find("load a session after the fork") == std::string::npos) status = 2;
      }
    };
    refused([&] { room.session->submit(prompt_of(5), new_tokens(2)); });
    refused([&] { request->next(); });
    refused([&] { request->wait(); });
    if (request->result().ids.size() != 2) status = 3;
    room.session.reset();
    return status;
  });
  CHECK(room.session->generate(std::vector<Ids>{prompt_of(5)}, new_tokens(2))[0][0].ids.size() ==
        2);
}
