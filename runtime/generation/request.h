// The half of a request that its caller holds: results, filled by the engine's thread.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "packhorse/generation.h"

namespace packhorse {

/// What a result says where there is no memory for more: a std::string of it allocates nothing.
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
  void cancel() override { cancelled_ = true; }
  void set_listener(std::function<void()> listener) override;
  size_t num_sequences() const override { return sequences_.size(); }
  FinishReason finish_reason(size_t sequence) const override;
  GeneratedSequence result(size_t sequence) const override;
  PromptLogprobs prompt_logprobs() const override;
  GenerationUsage usage() const override;

  // For the engine. Nobody is woken before `notify`.
  bool cancelled() const { return cancelled_; }
  void append(size_t sequence, const TokenLogprob& token, std::span<const TokenLogprob> top);
  void finish(size_t sequence, FinishReason reason, const std::string& error = {});
  /// A sequence that comes as a whole.
  void set(size_t sequence, GeneratedSequence result);
  void set_prompt_logprobs(PromptLogprobs logprobs);
  void set_cached_prompt_tokens(int64_t count);
  void count_drafts(int64_t drafted, int64_t accepted);
  /// Wakes those who wait and tells the listener.
  void notify();

 private:
  struct Progress {
    GeneratedSequence result;
    size_t given = 0;  // tokens that `next` has given
  };
  Progress& at(size_t sequence);
  const Progress& at(size_t sequence) const;

  const pid_t process_;
  const bool wants_logprobs_;
  std::atomic<bool> cancelled_ = false;
  mutable std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::condition_variable ended_;  // apart, so that who waits for the end is not woken before
  std::vector<Progress> sequences_;
  size_t num_finished_ = 0;
  PromptLogprobs prompt_logprobs_;
  GenerationUsage usage_;
  std::recursive_mutex listener_mutex_;  // a listener may set another one
  std::function<void()> listener_;
  std::atomic<bool> listens_ = false;  // there is one: read without the lock
};

}  // namespace packhorse
