// The engine, over a model that shows every wrong page.
#include "packhorse/generation.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "fake_runner.h"
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
  GeneratedSequence alone(const Ids& prompt, const Sampling& sampling, uint64_t stream = 0) const {
    return generate_alone({limits.vocab_size}, prompt, sampling, stream, limits.max_context);
  }
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
