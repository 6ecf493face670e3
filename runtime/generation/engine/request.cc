#include "generation/engine/request.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "core/format.h"

namespace packhorse {

const char* name_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kDeadline:
      return "deadline";
    case FinishReason::kError:
      return "error";
    case FinishReason::kNone:
      break;
  }
  return "";
}

void check_process(pid_t process) {
  if (getpid() == process) return;
  throw RuntimeError(concat("this session was loaded in process ", process,
                            " and cannot generate in process ", getpid(),
                            ", forked from it: load a session after the fork"));
}

std::chrono::steady_clock::time_point after(double seconds) {
  using Clock = std::chrono::steady_clock;
  constexpr double kYears = 1e9;  // seconds; more would come near the end of the clock
  if (!(seconds < kYears)) return Clock::time_point::max();
  const std::chrono::duration<double> wait(std::max(seconds, 0.0));
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(wait);
}

Request::Request(const Sampling& sampling, int64_t prompt_tokens, int64_t expected_tokens)
    : process_(getpid()),
      wants_logprobs_(sampling.logprobs.has_value()),
      sequences_(static_cast<size_t>(sampling.n)) {
  usage_.prompt_tokens = prompt_tokens;
  const auto tokens = static_cast<size_t>(expected_tokens);
  for (Progress& progress : sequences_) {
    progress.ids = std::make_unique_for_overwrite<int32_t[]>(tokens);
    if (!wants_logprobs_) continue;
    progress.result.logprobs.reserve(tokens);
    progress.result.top_logprobs.reserve(tokens * static_cast<size_t>(*sampling.logprobs));
  }
}

const Request::Progress& Request::at(size_t sequence) const {
  if (sequence < sequences_.size()) return sequences_[sequence];
  throw InvalidArgument(concat("sequence is ", sequence, ", expected 0 to ", sequences_.size() - 1,
                               ": the request has n = ", sequences_.size()));
}

Request::Progress& Request::at(size_t sequence) {
  return const_cast<Progress&>(std::as_const(*this).at(sequence));
}

std::vector<int32_t> Request::next(size_t sequence, double timeout_s) {
  check_process(process_);
  std::unique_lock lock(mutex_);
  Progress& progress = at(sequence);
  const auto ready = [&] {
    return progress.tokens().size() > progress.given ||
           progress.result.finish_reason != FinishReason::kNone;
  };
  if (!ready() && timeout_s > 0) {
    check_waits();
    ++num_watchers_;
    pass_turnstile();
    changed_.wait_until(lock, after(timeout_s), ready);
    --num_watchers_;
  }
  const std::span<const int32_t> ids = progress.tokens();
  std::vector<int32_t> fresh(ids.begin() + static_cast<ptrdiff_t>(progress.given), ids.end());
  progress.given = ids.size();
  return fresh;
}

bool Request::wait(double timeout_s) {
  check_process(process_);
  std::unique_lock lock(mutex_);
  const auto ended = [&] { return num_finished_ == sequences_.size(); };
  if (ended() || timeout_s <= 0) return ended();
  check_waits();
  return ended_.wait_until(lock, after(timeout_s), ended);
}

void Request::check_waits() const {
  if (engine_thread_ != std::this_thread::get_id()) return;
  throw RuntimeError(
      "a token mask or a listener waits for a request of its own session, which goes on only after "
      "it");
}

void Request::set_listener(std::function<void()> listener) {
  const std::lock_guard lock(listener_mutex_);
  num_watchers_ += (listener != nullptr ? 1 : 0) - (listener_ != nullptr ? 1 : 0);
  listener_ = std::move(listener);
  pass_turnstile();
  if (listener_) listener_();
}

FinishReason Request::finish_reason(size_t sequence) const {
  const std::lock_guard lock(mutex_);
  return at(sequence).result.finish_reason;
}

GeneratedSequence Request::result(size_t sequence) const {
  const std::lock_guard lock(mutex_);
  const Progress& progress = at(sequence);
  const std::span<const int32_t> ids = progress.tokens();
  GeneratedSequence result = progress.result;
  result.ids.assign(ids.begin(), ids.end());
  return result;
}

PromptLogprobs Request::prompt_logprobs() const {
  const std::lock_guard lock(mutex_);
  return prompt_logprobs_;
}

AlignmentWeights Request::alignment() const {
  const std::lock_guard lock(mutex_);
  return alignment_;
}

GenerationUsage Request::usage() const {
  const std::lock_guard lock(mutex_);
  GenerationUsage usage = usage_;
  for (const Progress& progress : sequences_) {
    usage.new_tokens += static_cast<int64_t>(progress.tokens().size());
  }
  return usage;
}

void Request::append_logprobs(Progress& progress, const TokenLogprob& token,
                              std::span<const TokenLogprob> top) {
  const std::lock_guard lock(mutex_);
  progress.append(token.id);
  GeneratedSequence& result = progress.result;
  result.logprobs.push_back(token.logprob);
  result.top_logprobs.insert(result.top_logprobs.end(), top.begin(), top.end());
}

void Request::finish(size_t sequence, FinishReason reason, const std::string& error) {
  const std::lock_guard lock(mutex_);
  GeneratedSequence& result = sequences_[sequence].result;
  if (result.finish_reason != FinishReason::kNone) return;
  result.finish_reason = reason;
  try {
    result.error = error;
  } catch (const std::bad_alloc&) {
    result.error = kOutOfMemory;
  }
  ++num_finished_;
}

void Request::set(size_t sequence, GeneratedSequence result) {
  const std::lock_guard lock(mutex_);
  sequences_[sequence].result = std::move(result);
  ++num_finished_;
}

void Request::set_prompt_logprobs(PromptLogprobs logprobs) {
  const std::lock_guard lock(mutex_);
  prompt_logprobs_ = std::move(logprobs);
}

void Request::set_alignment(AlignmentWeights weights) {
  const std::lock_guard lock(mutex_);
  alignment_ = std::move(weights);
}

void Request::set_cached_prompt_tokens(int64_t count) {
  const std::lock_guard lock(mutex_);
  usage_.cached_prompt_tokens = count;
}

void Request::count_drafts(int64_t drafted, int64_t accepted) {
  const std::lock_guard lock(mutex_);
  usage_.drafted_tokens += drafted;
  usage_.accepted_tokens += accepted;
}

void Request::notify_watchers() {
  {
    // Who has looked for tokens and found none waits when the lock is free.
    const std::lock_guard lock(mutex_);
  }
  changed_.notify_all();
  const std::lock_guard lock(listener_mutex_);
  if (listener_) listener_();
}

}  // namespace packhorse
