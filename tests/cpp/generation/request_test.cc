// The half of a request that its caller holds, between two threads, and its ends before it runs.
#include "generation/engine/request.h"

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "fake_runner.h"
#include "generation/engine/engine.h"
#include "generation/engine/job.h"
#include "test.h"

using namespace packhorse;

namespace {

constexpr int kTokens = 20000;

// Does to a request what the engine's thread does in a step.
void add_token(Request& request, int number) {
  const TokenLogprob token = {number, static_cast<float>(number)};
  request.append(0, token, std::vector<TokenLogprob>{token});
  Request::pass_turnstile();
  request.notify();
}

}  // namespace

TEST(requests_wake_who_waits_for_each_token) {
  Request request({}, 1, kTokens);
  std::atomic<int> taken = 0;
  std::thread caller([&] {
    for (int number = 0; number < kTokens; ++number) {
      // A thread that is not told of a token finds it when its time is up.
      const auto begin = std::chrono::steady_clock::now();
      const std::vector<int32_t> fresh = request.next(0, 10);
      const bool told = std::chrono::steady_clock::now() - begin < std::chrono::seconds(5);
      CHECK(told && fresh == std::vector<int32_t>{number});
      if (!told || fresh.empty()) break;
      ++taken;
    }
    taken = kTokens;
  });
  for (int number = 0; number < kTokens; ++number) {
    add_token(request, number);
    while (taken <= number) std::this_thread::yield();
  }
  caller.join();
}

TEST(requests_tell_a_listener_that_comes_in_between) {
  for (int round = 0; round < 300; ++round) {
    Request request({}, 1, kTokens);
    std::atomic<int> calls = 0;
    std::atomic<size_t> told = 0;
    std::thread caller([&] {
      request.set_listener([&] {
        told = request.result(0).ids.size();
        ++calls;
      });
    });
    // The first call is of the thread that sets the listener, whenever it comes; the others are of
    // this one.
    int number = 0;
    while (calls == 0 && number < kTokens - 100) add_token(request, number++);
    caller.join();
    const int before = calls;
    for (int i = 0; i < 100; ++i) add_token(request, number++);
    CHECK(calls == before + 100);
    CHECK(told == static_cast<size_t>(number));
  }
}

TEST(requests_show_whole_tokens) {
  Sampling sampling;
  sampling.logprobs = 1;
  Request request(sampling, 1, kTokens);
  std::atomic<bool> done = false;
  std::thread caller([&] {
    size_t seen = 0;
    while (!done) {
      const GeneratedSequence result = request.result(0);
      const size_t count = result.ids.size();
      CHECK(count >= seen && result.logprobs.size() == count);
      CHECK(result.top_logprobs.size() == count);
      if (count > 0) CHECK(result.logprobs.back() == static_cast<float>(count - 1));
      if (count > 0) CHECK(result.ids.back() == static_cast<int32_t>(count - 1));
      seen = count;
    }
  });
  for (int number = 0; number < kTokens; ++number) add_token(request, number);
  done = true;
  caller.join();
  CHECK(request.usage().new_tokens == kTokens);
}

TEST(requests_that_were_cancelled_before_they_came_are_ended) {
  const RunnerLimits limits{40, 1000, 40, 48, 6, 1};
  const GenerationOptions options;
  test::FakeRunner runner(limits);
  runner.hold();  // so that a request of 900 steps is not over too early
  Engine engine(runner, options);
  Sampling sampling;
  sampling.max_new_tokens = 900;
  const std::vector<int32_t> prompt = {1, 2, 3};
  std::vector<std::unique_ptr<Job>> jobs;
  jobs.push_back(make_job(prompt, sampling, limits, options));
  jobs.push_back(make_job(prompt, sampling, limits, options));
  const auto running = jobs[0]->request;
  const auto cancelled = jobs[1]->request;
  cancelled->cancel();
  // Steps that know of the cancellation, and not of the request.
  engine.submit(std::span(jobs).first(1), kNoTimeout);
  for (int steps = 0; steps < 3; ++steps) {
    runner.let_go(1);
    running->next(0, kNoTimeout);
  }
  engine.submit(std::span(jobs).last(1), kNoTimeout);
  runner.let_go(20);
  CHECK(cancelled->wait(60) && cancelled->finish_reason(0) == FinishReason::kCancelled);
  CHECK(cancelled->result(0).ids.empty());
  running->cancel();
  runner.let_go();
  CHECK(running->wait(60) && running->finish_reason(0) == FinishReason::kCancelled);
}
