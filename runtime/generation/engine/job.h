// The half of a request that the engine holds: its sequences, on their way through the steps.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "generation/engine/adapter_names.h"
#include "generation/engine/request.h"
#include "generation/kv_cache/content_numbers.h"
#include "generation/kv_cache/page_pool.h"
#include "generation/runner/step_runner.h"
#include "generation/sampling/beam_search.h"
#include "generation/speculation/speculation.h"

namespace packhorse {

struct Job;

/// One sequence of a request, or one beam.
struct Sequence {
  enum class State : uint8_t {
    kNotStarted,  // a beam that has no tokens yet
    kWaiting,     // holds no pages: not started, or preempted
    kRunning,
    kFinished,
  };

  // Fields that every step reads come first, so that they lie together.
  State state = State::kWaiting;
  /// Nothing but its tokens decides about its steps: it has no mask, beam search, drafts or wanted
  /// log-probabilities of the prompt.
  bool plain = false;
  bool restart = true;   // StepSampler::restart of its next sampled step; of drafts, always
  bool offered = false;  // a beam whose candidates have come
  bool masked = false;   // mask_words say what may come next
  bool dropped = false;  // a beam that no token can follow
  int32_t slot = -1;     // where it runs
  Job* job = nullptr;
  int64_t computed = 0;         // tokens cached when the steps in flight have run
  int64_t pending = 0;          // tokens that steps in flight choose for it
  std::vector<int32_t> tokens;  // prompt and new tokens; never more than reserved
  std::vector<int32_t> pages;   // block table
  uint64_t epoch = 0;     // its own alone since it began, and another one once it gives back pages
  int64_t committed = 0;  // tokens of steps that were collected
  int64_t published = 0;  // pages of it that are published, the first ones
  TokenLogprob chosen;
  size_t index = 0;
  std::vector<TokenLogprob> top;
  std::vector<float> logprobs;  // one for each new token of a beam
  std::shared_ptr<TokenMask> mask;
  std::vector<uint32_t> mask_words;
  std::unique_ptr<Speculation> speculation;  // null: nothing is drafted

  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
  /// Tokens to compute before the next one can be chosen; a pending one is among them.
  int64_t remaining() const { return size() + pending - computed; }
  /// True if it waits for nothing else but its next token.
  bool waits_for_token() const;
  std::span<const int32_t> new_ids() const;
};

struct Job {
  // Fields that every step reads come first, so that they lie together.
  std::vector<Sequence> sequences;
  int64_t max_size = 0;  // prompt and new tokens of each sequence
  int64_t prompt_tokens = 0;
  int64_t in_flight = 0;  // sequences of it in steps in flight, each once for each step
  bool started = false;
  bool changed = false;  // its caller must be told
  std::shared_ptr<Request> request;
  std::vector<int32_t> stop_ids;  // the session's too, each once, in order
  Sampling sampling;
  std::optional<TokenRules> rules;  // none where the settings have none
  uint64_t seed = 0;
  std::shared_ptr<const AdapterNames::Lease> adapter;  // null: none
  uint64_t salt = 0;                                   // PagePool::root

  /// Tokens of the prompt that stand for images or the like, and what stands for each of these
  /// where pages are compared.
  std::vector<PromptContent> contents;
  std::vector<NumberedContent> content_numbers;

  /// Tokens that the encoder reads, in a model that has one, and the pages of their keys and values
  /// for cross attention, which all sequences of the request share. It has these while a sequence
  /// of it runs.
  std::vector<int32_t> source;
  std::shared_ptr<const SourceFeatures> features;  // those that `source` stands for, or null
  std::vector<int32_t> source_pages;
  uint64_t source_epoch = 0;  // its own alone since it has those pages; 0: it has none
  bool reads_source = false;  // a step in flight computes what they hold
  bool source_published = false;
  int64_t num_running = 0;  // sequences

  std::chrono::steady_clock::time_point deadline;

  bool drafts_by_model = false;
  Sampling draft_sampling;  // for the draft model: the same choices, without log-probabilities

  std::vector<uint32_t> allowed_words;  // Sampling::allowed_ids as a mask; empty: all

  /// Beam search: `sequences` are its beams, and `spare` what they become in the next step.
  std::optional<BeamSearch> search;
  std::vector<Sequence> spare;

  PromptLogprobs prompt_logprobs;
  int64_t scored = 0;  // tokens of the prompt whose log-probabilities have been computed
  AlignmentWeights alignment;
  int64_t aligned = 0;  // tokens of the prompt whose weights over the source have been computed

  int32_t adapter_slot() const { return adapter == nullptr ? -1 : adapter->slot; }
  bool wants_new_tokens() const { return max_size > prompt_tokens; }
  /// Log-probabilities of the prompt that have not come yet.
  bool must_score() const {
    return sampling.prompt_logprobs.has_value() && scored < prompt_tokens - 1;
  }
  /// Weights of the prompt over the source that have not come yet.
  bool must_align() const { return !sampling.alignment_heads.empty() && aligned < prompt_tokens; }
  /// True if no sequence of it will need another step.
  bool finished() const;
};

inline bool Sequence::waits_for_token() const {
  const bool ends = size() + pending >= job->max_size;
  return state == State::kRunning && remaining() == 1 && (pending == 0 || !ends);
}

inline std::span<const int32_t> Sequence::new_ids() const {
  return std::span(tokens).subspan(static_cast<size_t>(job->prompt_tokens));
}

inline bool Job::finished() const {
  for (const Sequence& sequence : sequences) {
    if (sequence.state != Sequence::State::kFinished) return false;
  }
  return true;
}

/// Checks a request against what the model, the cache and the options allow, and makes its job.
/// Throws InvalidArgument naming what was found and what was expected.
std::unique_ptr<Job> make_job(std::span<const int32_t> ids, const Sampling& sampling,
                              const RunnerLimits& limits, const GenerationOptions& options,
                              std::span<const int32_t> source = {},
                              std::shared_ptr<const SourceFeatures> features = nullptr);

}  // namespace packhorse
