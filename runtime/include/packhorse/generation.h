// The public C++ API of generation: load a decoder once, submit prompts from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "packhorse/error.h"
#include "packhorse/export.h"
#include "packhorse/memory_plan.h"
#include "packhorse/sampling.h"
#include "packhorse/types.h"
#include "packhorse/weight_source.h"

namespace packhorse {

/// A smaller model of the same vocabulary, which drafts tokens for another one.
struct DraftModel {
  std::string folder;                     // a converted folder, in place of the next two
  std::string spec_json;                  // docs/developer/spec.md
  const WeightSource* weights = nullptr;  // read while the session is loaded
  DType dtype = DType::kFloat32;
};

struct GenerationOptions {
  Device device;
  DType dtype = DType::kFloat32;
  /// Tokens of all sequences together whose keys and values the cache holds, rounded up to pages.
  /// No value: as many as the memory limit leaves. Without that, on a GPU as many as fit
  /// into 90 % of its free memory; on the CPU 2048 for each of max_sequences, and a whole context
  /// at least, but no more than fit into a quarter of the memory that the model leaves free.
  std::optional<int64_t> kv_tokens;
  /// The dtype of keys and values in the cache. Without a value: that of the activations, or
  /// kBFloat16 on a CPU in a model of speech whose weights are kInt8. kFloat8: e4m3 with a scale
  /// for each token and head of keys, which halves the cache of 16-bit sessions.
  std::optional<DType> kv_cache_dtype;
  int64_t max_tokens = 2048;   // tokens of one step: of all prompts' pieces and running sequences
  int64_t max_sequences = 64;  // sequences that run at once; not above max_tokens
  int64_t max_queue = 4096;    // requests that may wait to be started
  bool prefix_cache = true;    // prompts with a common beginning share its keys and values
  int threads = 0;             // CPU threads; 0: all cores that the process may use
  bool pin_threads = false;    // each CPU worker stays on one core of the affinity mask
  std::optional<size_t> memory_limit;  // bytes, weights + arena + cache; exceeded: OutOfMemory
  std::vector<int32_t> eos_ids;        // tokens that end a sequence, unless Sampling::ignore_eos
  int64_t max_adapters = 0;            // LoRA adapters that may be there at once
  int64_t max_adapter_rank = 16;       // largest rank of each
  /// Speculative decoding: tokens that are drafted for each sequence in a step at most, and
  /// computed together with its last one. A draft counts where it equals the token that is chosen
  /// at its place, so that texts are the same bits as without. 0: none; at most kMostDraftTokens.
  int64_t draft_tokens = 0;
  /// The model that drafts. Without a value, drafts are what followed the last tokens where they
  /// stood before.
  std::optional<DraftModel> draft_model;
};

/// Largest GenerationOptions::draft_tokens.
inline constexpr int64_t kMostDraftTokens = 32;

enum class FinishReason : uint8_t {
  kNone,       // not finished
  kStop,       // a token of stop_ids or eos_ids, or a mask that allowed no more
  kLength,     // max_new_tokens, the model's context or the whole cache
  kCancelled,  // cancelled, or the session is gone
  kDeadline,
  kError,
};

/// "", "stop", "length", "cancelled", "deadline" or "error".
PACKHORSE_API const char* name_of(FinishReason reason);

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0;
};

/// One sequence of a request: what there is of it so far, or all of it.
struct GeneratedSequence {
  std::vector<int32_t> ids;     // [N] the new tokens, the one that ended the sequence included
  std::vector<float> logprobs;  // [N] where Sampling::logprobs has a value
  std::vector<TokenLogprob> top_logprobs;  // [N, Sampling::logprobs] most probable first
  float score = 0;                         // beam search: score of the hypothesis
  FinishReason finish_reason = FinishReason::kNone;
  std::string error;  // why, where finish_reason is kError
};

/// Log-probabilities of a prompt of P tokens.
struct PromptLogprobs {
  std::vector<float> logprobs;    // [P - 1] of the tokens 1 to P - 1
  std::vector<TokenLogprob> top;  // [P - 1, Sampling::prompt_logprobs] most probable first
};

/// Weights of cross attention of a prompt of P tokens over S tokens of its source.
struct AlignmentWeights {
  std::vector<float> values;  // [Sampling::alignment_heads, P, S]; the S of a token add up to 1
  int64_t source_tokens = 0;  // S
};

struct GenerationUsage {
  int64_t prompt_tokens = 0;
  int64_t cached_prompt_tokens = 0;  // taken from the cache by the first sequence
  int64_t new_tokens = 0;            // tokens of all sequences
  int64_t drafted_tokens = 0;        // for them; those that were accepted are among the new ones
  int64_t accepted_tokens = 0;
};

inline constexpr double kNoTimeout = std::numeric_limits<double>::infinity();

/// Frames of audio, which the encoder of a model of speech reads: logarithms of mel filters.
struct SourceFeatures {
  std::vector<float> values;  // [frames, columns]
  int64_t columns = 0;        // filters, of each frame
};

/// A request that was submitted. Its methods may be called from any thread, also when the session
/// is gone; the request then has ended. `sequence` counts from 0 to Sampling::n - 1; another number
/// is an InvalidArgument. In a process forked from the one that loaded the session, what would wait
/// throws RuntimeError.
class PACKHORSE_API GenerationRequest {
 public:
  virtual ~GenerationRequest() = default;

  /// Waits until `sequence` has tokens that no call of `next` has given yet, and gives them. Empty:
  /// the sequence has ended, or `timeout_s` seconds have passed.
  virtual std::vector<int32_t> next(size_t sequence = 0, double timeout_s = kNoTimeout) = 0;
  /// Waits until all sequences have ended. False: `timeout_s` seconds have passed.
  virtual bool wait(double timeout_s = kNoTimeout) = 0;
  /// Ends the request soon, with the tokens it has and FinishReason::kCancelled. Does not wait.
  virtual void cancel() = 0;
  /// `listener` is called by the thread of the engine whenever there are new tokens or the request
  /// has ended, and once at once. It must be quick, throw nothing and not wait for requests of its
  /// session, which it may destroy. Empty: nobody is told from now on.
  virtual void set_listener(std::function<void()> listener) = 0;

  virtual size_t num_sequences() const = 0;
  virtual FinishReason finish_reason(size_t sequence = 0) const = 0;
  /// A copy of what there is so far.
  virtual GeneratedSequence result(size_t sequence = 0) const = 0;
  /// Complete when the first sequence has a token; empty where they were not asked for.
  virtual PromptLogprobs prompt_logprobs() const = 0;
  /// Complete when the first sequence has a token or has ended as it should; empty where no weights
  /// were asked for.
  virtual AlignmentWeights alignment() const = 0;
  virtual GenerationUsage usage() const = 0;
};

/// Memory that a session uses, byte by byte.
struct GenerationMemoryPlan : MemoryPlan {
  PlannedAllocation adapters;  // slots of max_adapters adapters
  PlannedAllocation kv_cache;
  PlannedAllocation draft_weights;  // belong to the draft model, like the next two
  PlannedAllocation draft_arena;
  PlannedAllocation draft_kv_cache;  // as many tokens as the other
  int64_t kv_tokens = 0;             // tokens that the cache holds
  size_t bytes_per_token = 0;        // cache alone, without that of the draft model
  size_t total_bytes() const {
    return MemoryPlan::total_bytes() + adapters.bytes + kv_cache.bytes + draft_bytes();
  }
  size_t draft_bytes() const {
    return draft_weights.bytes + draft_arena.bytes + draft_kv_cache.bytes;
  }
};

/// State of the engine at one moment, and counts of what it has done since it was loaded.
struct GenerationStats {
  int64_t queued = 0;        // sequences that wait, preempted ones among them
  int64_t running = 0;       // sequences that run
  int64_t pages = 0;         // pages of the cache: the sum of the next three
  int64_t pages_used = 0;    // held by running sequences
  int64_t pages_cached = 0;  // held by nobody, kept for prompts that begin alike
  int64_t pages_free = 0;
  int64_t steps = 0;
  int64_t computed_tokens = 0;  // tokens of prompts and output, drafts, and those computed again
  int64_t new_tokens = 0;
  int64_t preemptions = 0;
  int64_t prefix_hit_tokens = 0;  // tokens that were taken from the cache instead of computed
  int64_t finished_requests = 0;
  int64_t drafted_tokens = 0;   // that steps have computed behind the last token of a sequence
  int64_t accepted_tokens = 0;  // drafts that were right and saved a step
  /// Seconds that the engine's thread has spent otherwise than in waiting: for steps that run on a
  /// device, or for requests. The CPU's steps are computed in this time.
  double host_s = 0;
};

/// A loaded decoder, perhaps with an encoder, and the engine that runs all its requests: one thread
/// of its own, which makes step after step while there is work, each of one packed batch, and
/// sleeps otherwise. Methods may be called from many threads at once. After any error the session
/// stays usable. A session that is destroyed ends its requests with FinishReason::kCancelled, and
/// waits for that thread, unless a token mask or a listener destroys it: then the thread ends after
/// them.
class PACKHORSE_API GenerationSession {
 public:
  /// Loads a converted folder: packhorse.json (the spec) and model.safetensors.
  static std::shared_ptr<GenerationSession> load(const std::string& folder,
                                                 const GenerationOptions& options);
  /// Loads from a spec (JSON text, docs/developer/spec.md) and weights under the names of
  /// docs/developer/tensors.md.
  static std::shared_ptr<GenerationSession> load(const std::string& spec_json,
                                                 const WeightSource& weights,
                                                 const GenerationOptions& options);
  virtual ~GenerationSession() = default;

  /// Starts generating from the prompt `ids`, of at least one token. Where `max_queue` requests
  /// wait already, waits up to `timeout_s` seconds for a place. Throws InvalidArgument (prompt or
  /// settings not acceptable, or the request can never fit into the cache) and RuntimeError (no
  /// place in the queue; a process forked from the one that loaded the session).
  /// A model with an encoder takes a `source` of at least one token, which the encoder reads, and
  /// then `ids` is where the decoder begins; other models take none.
  virtual std::shared_ptr<GenerationRequest> submit(std::span<const int32_t> ids,
                                                    const Sampling& sampling, double timeout_s = 0,
                                                    std::span<const int32_t> source = {}) = 0;
  /// As `submit`, in a model whose encoder reads audio: an even number of frames, of which two are
  /// one token of the source. Throws InvalidArgument for frames of another size, too many of them,
  /// and numbers that are not finite.
  virtual std::shared_ptr<GenerationRequest> submit_features(
      std::span<const int32_t> ids, const Sampling& sampling, double timeout_s,
      std::shared_ptr<const SourceFeatures> features) = 0;
  /// Submits prompts as `submit` does, so that the next step sees all that the queue has places
  /// for. Throws as `submit` does; what was submitted is then cancelled.
  /// `sources`: one for each prompt, or empty.
  virtual std::vector<std::shared_ptr<GenerationRequest>> submit_all(
      std::span<const std::vector<int32_t>> prompts, const Sampling& sampling, double timeout_s = 0,
      std::span<const std::vector<int32_t>> sources = {}) = 0;
  /// Submits all prompts, each when the queue has a place, and waits for all. Results are in the
  /// order of `prompts`, of each prompt its `sampling.n` sequences. Throws as `submit` does; what
  /// was submitted is then cancelled. A request that ends with an error is in its result.
  virtual std::vector<std::vector<GeneratedSequence>> generate(
      std::span<const std::vector<int32_t>> prompts, const Sampling& sampling,
      std::span<const std::vector<int32_t>> sources = {}) = 0;

  /// Adds a LoRA adapter, which requests name in Sampling::adapter from then on; others go on
  /// meanwhile. `weights` holds, of each dense layer that it adapts, `NAME.lora_a` [rank,
  /// in_features] and `NAME.lora_b` [out_features, rank], which has the scale in it, under the
  /// names of docs/developer/tensors.md ("layers.0.attention.query.lora_a"). Throws InvalidArgument
  /// (a name that is empty or taken; tensors that are missing, not of this model, or above
  /// max_adapter_rank) and RuntimeError (no slot is free).
  virtual void add_adapter(const std::string& name, const WeightSource& weights) = 0;
  /// Later requests cannot name it; those that were submitted go on with it, and its slot is free
  /// when the last of them has ended. Throws InvalidArgument where there is no such adapter.
  virtual void remove_adapter(const std::string& name) = 0;
  /// Names of the adapters that requests can name, in the order in which they were added.
  virtual std::vector<std::string> adapters() const = 0;

  virtual const GenerationMemoryPlan& memory_plan() const = 0;
  virtual GenerationStats stats() const = 0;
  virtual const GenerationOptions& options() const = 0;
  /// Tokens of the longest sequence, prompt and output, that the model and the cache take.
  virtual int64_t max_context() const = 0;
  virtual int64_t vocab_size() const = 0;
  /// Tokens of the longest source that the model and the cache take; 0: the model has no encoder.
  virtual int64_t max_source() const = 0;
  /// Numbers of each frame that the encoder reads; 0: it reads no audio.
  virtual int64_t frame_features() const = 0;
};

/// The plan of a model that need not be loaded: no weights are read.
PACKHORSE_API GenerationMemoryPlan plan_generation(const std::string& spec_json,
                                                   const GenerationOptions& options);

}  // namespace packhorse
