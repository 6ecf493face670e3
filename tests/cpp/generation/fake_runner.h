// A model of a few lines for tests of the engine: what it says next is a hash of all tokens before,
// read from its own pages. A wrong page, one that another sequence has written, a lost token or
// one computed twice at another place changes what comes out.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "generation/runner/step_runner.h"

namespace packhorse::test {

uint64_t mix(uint64_t a, uint64_t b);

/// The model, as a function of tokens alone.
struct FakeModel {
  int64_t vocab_size = 40;
  /// Above 0: a token is mostly followed by the same one, but not after one `repeats`-th of texts.
  uint64_t repeats = 0;
  /// Above 0: after one `flaw`-th of texts another token comes than in a model whose `flaw` is 0.
  uint64_t flaw = 0;

  /// Returns the cache's entry of a token. `before`: the sum of the entries of the tokens before
  /// it.
  static uint64_t key(uint64_t before, int32_t token, int64_t position) {
    return mix(mix(before, static_cast<uint64_t>(token)), static_cast<uint64_t>(position));
  }
  /// Entries of a source's tokens, each of which depends on all of them.
  static std::vector<uint64_t> source_keys(std::span<const int32_t> source);
  /// Log-probabilities of the next token, [vocab_size]. `sum`: of all keys; `last`: the last token.
  std::vector<float> logprobs(uint64_t sum, int32_t last) const;
  /// Scores after penalties, bias and mask; -inf where the token is not allowed.
  static std::vector<float> processed(std::vector<float> scores, const StepSampler& sampler);
  static int32_t choose(const std::vector<float>& scores, const StepSampler& sampler);
  static void take_top(const std::vector<float>& scores, std::span<TokenLogprob> top);
  /// Everything that a sampled row gives.
  void sample(uint64_t sum, int32_t last, const StepSampler& sampler, TokenLogprob* chosen,
              std::span<TokenLogprob> top) const;
};

/// Runs steps as a device does on which they overlap, or one by one. It copies what it may read at
/// a launch only. Overlapping steps are computed as early as they may be or as late, by chance.
class FakeRunner final : public StepRunner {
 public:
  /// `draft`: of a draft model.
  explicit FakeRunner(const RunnerLimits& limits, bool overlaps = true, uint64_t repeats = 0,
                      uint64_t flaw = 0, std::unique_ptr<FakeRunner> draft = nullptr);
  ~FakeRunner() override;

  const RunnerLimits& limits() const override { return limits_; }
  const GenerationMemoryPlan& memory_plan() const override { return plan_; }
  bool overlaps() const override { return overlaps_; }
  FakeRunner* draft() override { return draft_.get(); }

  void launch(const Step& step) override;
  void wait() override;
  std::function<void(int32_t)> read_adapter(const WeightSource&) override;

  /// Steps wait until `let_go`; with a count, that many steps are let go.
  void hold() {
    const std::lock_guard lock(mutex_);
    allowed_ = 0;
  }
  void let_go(int64_t count = std::numeric_limits<int64_t>::max()) {
    {
      const std::lock_guard lock(mutex_);
      allowed_ = count;
    }
    changed_.notify_all();
  }
  /// Waits until a step is held.
  void wait_held() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return held_; });
  }

  std::atomic<int64_t> steps = 0;
  std::atomic<int64_t> overlapped = 0;  // steps that were launched while another was in flight
  std::atomic<int64_t> sampled = 0;     // tokens chosen
  std::atomic<int> fail_in = 0;         // number of steps until one fails; 0: none does
  std::atomic<int64_t> copies = 0;
  std::atomic<int64_t> computed = 0;
  std::atomic<int64_t> sources_read = 0;

 private:
  struct Slot {
    std::vector<int32_t> history;
    int32_t chosen = -1;
    uint64_t step = 0;  // step that chose it
  };

  struct Part;
  struct Launched;

  void perform(Launched& step);
  uint64_t& at(int32_t page, int64_t token) {
    return cache_[static_cast<size_t>(page * kPageTokens + token)];
  }
  void wait_until_let_go();
  void check(const Step& step);
  /// Fills in what is pending, and checks the slot.
  void begin(Part& part, uint64_t number);
  void compute(Part& part, uint64_t number);
  /// Chooses the token after a row, where one is to be chosen.
  void sample(Part& part, size_t row, uint64_t sum, uint64_t number);

  const RunnerLimits limits_;
  const bool overlaps_;
  const FakeModel model_;
  const std::unique_ptr<FakeRunner> draft_;
  GenerationMemoryPlan plan_;
  std::vector<uint64_t> cache_;
  std::vector<Slot> slots_;
  std::vector<Launched> in_flight_;  // the oldest first
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t allowed_ = std::numeric_limits<int64_t>::max();
  bool held_ = false;
};

/// Generates one sequence with a loop over its tokens, without engine, pages and batch.
GeneratedSequence generate_alone(const FakeModel& model, std::span<const int32_t> prompt,
                                 const Sampling& sampling, uint64_t stream, int64_t max_context,
                                 std::span<const int32_t> source = {});

}  // namespace packhorse::test
