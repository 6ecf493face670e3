// The half of a request that its caller holds: results, filled by the engine's thread.
//
// That thread adds a token to every request in every step, so it takes no lock for it: it writes
// the token behind those that are there, and then their number. Nor does it wake who does not wait.
// Of two threads, one that adds tokens and then looks for somebody who waits, and one that says
// that it waits and then looks for tokens, one must see what the other has done. Both pass a
// turnstile in between, which a step's thread does once for all requests: who comes second sees it.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "packhorse/generation.h"

namespace packhorse {

/// Error of a result where there is no memory for more: a std::string of it allocates nothing.
inline constexpr const char* kOutOfMemory = "out of memory";

/// Throws RuntimeError in a process forked from `process`, which has no engine thread.
void check_process(pid_t process);

/// The time `seconds` from now; never, where that is too far for the clock.
std::chrono::steady_clock::time_point after(double seconds);

class Request final : public GenerationRequest {
 public:
  /// `expected_tokens`: of one sequence; room for them is taken here.
  Request(const Sampling& sampling, int64_t prompt_tokens, int64_t expected_tokens);

  std::vector<int32_t> next(size_t sequence, double timeout_s) override;
  bool wait(double timeout_s) override;
  void cancel() override {
    cancelled_ = true;
    ++num_cancellations_;
  }
  void set_listener(std::function<void()> listener) override;
  size_t num_sequences() const override { return sequences_.size(); }
  FinishReason finish_reason(size_t sequence) const override;
  GeneratedSequence result(size_t sequence) const override;
  PromptLogprobs prompt_logprobs() const override;
  AlignmentWeights alignment() const override;
  GenerationUsage usage() const override;

  // For the engine. Nobody is woken before `notify`.
  /// Called before anybody else has the request.
  void set_engine_thread(std::thread::id thread) { engine_thread_ = thread; }
  bool cancelled() const { return cancelled_; }
  /// Number of cancellations in this process: as long as it stays the same, no request was
  /// cancelled.
  static uint64_t num_cancellations() { return num_cancellations_; }
  /// There are at most `expected_tokens` of each sequence.
  void append(size_t sequence, const TokenLogprob& token, std::span<const TokenLogprob> top) {
    Progress& progress = sequences_[sequence];
    wants_logprobs_ ? append_logprobs(progress, token, top) : progress.append(token.id);
  }
  void finish(size_t sequence, FinishReason reason, const std::string& error = {});
  /// A sequence that comes as a whole.
  void set(size_t sequence, GeneratedSequence result);
  void set_prompt_logprobs(PromptLogprobs logprobs);
  void set_alignment(AlignmentWeights weights);
  void set_cached_prompt_tokens(int64_t count);
  void count_drafts(int64_t drafted, int64_t accepted);
  /// Between what was appended to any requests and `notify` of these.
  static void pass_turnstile() { turnstile_.fetch_add(1, std::memory_order_acq_rel); }
  /// Wakes those who wait and tells the listener.
  void notify() {
    // Nobody but the engine's thread, which calls this, writes that number.
    if (num_finished_ == sequences_.size()) ended_.notify_all();
    if (num_watchers_.load(std::memory_order_relaxed) > 0) notify_watchers();
  }

 private:
  struct Progress {
    std::unique_ptr<int32_t[]> ids;  // [expected_tokens]
    std::atomic<size_t> count = 0;   // ids that are there; those before it are written no more
    size_t given = 0;                // tokens that `next` has given
    GeneratedSequence result;        // without ids, unless it came as a whole

    void append(int32_t id) {
      const size_t before = count.load(std::memory_order_relaxed);
      ids[before] = id;
      count.store(before + 1, std::memory_order_release);
    }
    std::span<const int32_t> tokens() const {
      if (!result.ids.empty()) return result.ids;
      return {ids.get(), count.load(std::memory_order_acquire)};
    }
  };
  /// Throws RuntimeError where the engine's thread would wait for what only it can do.
  void check_waits() const;
  Progress& at(size_t sequence);
  const Progress& at(size_t sequence) const;
  /// Appends a token and what belongs to it, which takes a lock.
  void append_logprobs(Progress& progress, const TokenLogprob& token,
                       std::span<const TokenLogprob> top);
  void notify_watchers();

  static inline std::atomic<uint64_t> num_cancellations_ = 0;
  static inline std::atomic<uint64_t> turnstile_ = 0;

  const pid_t process_;
  std::thread::id engine_thread_;
  const bool wants_logprobs_;
  std::atomic<bool> cancelled_ = false;
  std::atomic<int> num_watchers_ = 0;  // threads in `next` that wait, and the listener
  std::vector<Progress> sequences_;    // under mutex_, but for ids and their number
  mutable std::mutex mutex_;           // guards what follows
  std::condition_variable changed_;
  std::condition_variable ended_;  // apart, so that who waits for the end is not woken before
  size_t num_finished_ = 0;
  PromptLogprobs prompt_logprobs_;
  AlignmentWeights alignment_;
  GenerationUsage usage_;
  std::recursive_mutex listener_mutex_;  // a listener may set another one
  std::function<void()> listener_;
};

}  // namespace packhorse
