// Interface through which the engine runs a model: one step of computation over any sequences.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "generation/sampling/token_rules.h"
#include "ops/args/kv_cache.h"
#include "packhorse/generation.h"

namespace packhorse {

/// The first `tokens` tokens of page `to` become those of page `from`, in all layers; what the
/// others hold is not read any more.
struct PageCopy {
  int32_t from = 0;
  int32_t to = 0;
  int64_t tokens = 0;
};

/// Choice of the token after the last one of a SequenceSlice.
struct StepSampler {
  /// The request's settings. Where num_beams is above 1, nothing is chosen: `top` of the
  /// SequenceSlice gets the most probable tokens with their log-probabilities after penalties, bias
  /// and mask, not normalised again.
  const Sampling* sampling = nullptr;
  const TokenRules* rules = nullptr;  // null: its settings have none
  uint64_t seed = 0;
  uint64_t stream = 0;  // the index of the sequence in its request: Philox's key is (seed, stream)
  /// New tokens of the sequence so far: Philox's counter starts from it, so that a token's random
  /// numbers are the same whenever it is computed.
  int64_t num_new_tokens = 0;
  /// Prompt and new tokens so far, for penalties: [prompt_tokens + num_new_tokens], without the
  /// last one where that is pending. May be empty where there are no penalties, and no rules that
  /// read tokens: with such rules no token is pending, and there are no drafts.
  std::span<const int32_t> history;
  int64_t prompt_tokens = 0;
  /// Where a runner may keep what it has counted of the history, and the token that it chose last,
  /// from step to step: in [0, max_sequences). No two sequences of a step have the same one.
  int32_t slot = 0;
  /// False: the history is that of the slot's last sampled step, and the one token which has come
  /// since, the last of SequenceSlice::ids before drafts. True: it is another one.
  bool restart = true;
  /// Allowed tokens: bit t % 32 of word t / 32. Empty: all. At least one is allowed.
  std::span<const uint32_t> mask;
};

/// Weights of cross attention that are wanted of a sequence's rows.
struct SliceAlignment {
  std::span<const AttentionHead> heads;
  int64_t rows = 0;           // the first ones of SequenceSlice::ids; 0: none are wanted
  int64_t source_tokens = 0;  // over so many tokens of the source, the first ones
  float* out = nullptr;       // row r of head h: [source_tokens] at (h * row_stride + r) of these
  int64_t row_stride = 0;     // rows from head to head
};

/// The tokens that one sequence has in a step, and where results go (host memory). What is read is
/// valid until StepRunner::launch returns; where results go, until the step was waited for.
struct SequenceSlice {
  std::span<const int32_t> ids;  // the new tokens, at least one
  /// True: the last of `ids` is not known on the host, and the number there means nothing. It is
  /// the token that the step launched before this one, which is still in flight, chooses for the
  /// sequence in sampler.slot. `sample` is then true and sampler.restart false.
  bool pending = false;
  int64_t position = 0;            // index of ids[0]; keys and values of all before are cached
  std::span<const int32_t> pages;  // block table: tokens [64 i, 64 (i + 1)) lie in pages[i]
  int32_t adapter = -1;            // the slot of its adapter; -1: none
  /// Where cross attention finds the keys and values of `source_tokens` tokens; none without an
  /// encoder.
  std::span<const int32_t> source_pages;
  int64_t source_tokens = 0;
  int64_t kv_len() const { return position + static_cast<int64_t>(ids.size()); }

  /// True if the token after ids.back() is chosen.
  bool sample = false;
  /// So many of the last `ids` are drafts. The tokens after the one before them and after each of
  /// them are then chosen: `chosen` has 1 + drafts tokens, `top` as many rows, and
  /// sampler.num_new_tokens counts from the first of these on.
  int64_t drafts = 0;
  StepSampler sampler;             // where `sample`
  TokenLogprob* chosen = nullptr;  // the token; its log-probability where Sampling::logprobs is set
  std::span<TokenLogprob> top;  // the most probable tokens, best first, smaller id first of equals

  /// Prompt log-probabilities: row r of `ids` gives that of the token targets[r], for the first
  /// targets.size() rows. Empty: none are wanted.
  std::span<const int32_t> targets;
  std::span<float> target_logprobs;    // [targets.size()]
  std::span<TokenLogprob> target_top;  // [targets.size(), Sampling::prompt_logprobs]
  /// Tokens among which prompt log-probabilities are, as StepSampler::mask; empty: all.
  std::span<const uint32_t> target_mask;

  /// Written before StepRunner::launch returns.
  SliceAlignment alignment = {};
};

/// A source, which the encoder reads whole. Its keys and values for cross attention go to `pages`:
/// tokens [64 i, 64 (i + 1)) to pages[i].
struct SourceSlice {
  std::span<const int32_t> ids;  // where there are features, a number for each of its tokens
  std::span<const int32_t> pages;
  std::span<const float> features = {};  // [ids.size(), RunnerLimits::source_features] of audio
  int32_t adapter = -1;                  // as that of a SequenceSlice
};

/// One packed batch. No page that a sequence writes is in the table of another sequence.
struct Step {
  std::span<const PageCopy> copies;  // made in this order, before anything else
  std::span<const SequenceSlice> sequences;
  int64_t num_tokens = 0;
  std::span<const SourceSlice> sources = {};  // read before the sequences; max_tokens at most
};

struct RunnerLimits {
  int64_t vocab_size = 0;
  int64_t max_context = 0;    // positions of the model
  int64_t num_pages = 0;      // pages 0 to num_pages - 1
  int64_t max_tokens = 0;     // tokens of a step
  int64_t max_sequences = 0;  // sequences of a step
  int64_t max_adapters = 0;   // slots 0 to max_adapters - 1
  int64_t max_drafts = 0;     // drafts of a step, of all sequences together
  int64_t max_chunk = 0;      // tokens of prompts beside sequences that go on; 0: no such limit
  int64_t max_source = 0;     // tokens of a source; 0: there is no encoder
  int64_t source_vocab_size = 0;
  int64_t cross_layers = 0;     // layers with cross attention; 0: there is no encoder
  int64_t cross_heads = 0;      // heads of each
  int64_t source_features = 0;  // numbers of each token of a source of audio; 0: sources are ids
  int64_t max_chosen() const { return max_sequences + max_drafts; }  // tokens of a step
};

/// Drafts that a step has at most, of all its sequences, and rows of sequences that draft or could:
/// few rows take hardly longer than one, which reads the same weights; many rows take their time.
inline constexpr int64_t kMostDraftedRows = 32;

/// The most tokens that SequenceSlice::top, or one row of target_top, may have.
inline constexpr int64_t kMaxTopTokens = 128;
/// The most entries that Sampling::logit_bias may have.
inline constexpr int64_t kMostBiases = 1024;

/// Runs steps. Called by one thread at a time.
///
/// A step is launched, and then waited for: in between it is in flight. A runner whose steps run
/// elsewhere than in the calling thread lets another step be launched meanwhile, so that it begins
/// as soon as the one before it ends. Steps run one after the other, in the order of their
/// launches: a step sees everything that those before it have written, and writes nothing before
/// they have read it.
class StepRunner {
 public:
  /// Steps that may be in flight at once where steps overlap.
  static constexpr size_t kMostInFlight = 2;

  virtual ~StepRunner() = default;
  virtual const RunnerLimits& limits() const = 0;
  virtual const GenerationMemoryPlan& memory_plan() const = 0;
  /// True if a step may be launched while another is in flight. It may then have sequences whose
  /// last token is pending.
  virtual bool overlaps() const { return false; }
  /// Begins to store keys and values of the new tokens and to compute results. A token's results
  /// depend on its sequence alone: the same bits whatever the step has besides, however the tokens
  /// before came to be cached. Throws an Error where the step could not be launched; it is then not
  /// in flight, and those that are go on.
  virtual void launch(const Step& step) = 0;
  /// Waits for the oldest step in flight, and writes `chosen` and `top` of its sequences; the other
  /// results may have been written before. Throws an Error where the step failed; no step is in
  /// flight any more then.
  ///
  /// Of a step that failed, at its launch or later, results and what it was to write are not used.
  /// Pages that it was not to write are unchanged, and the runner stays usable.
  virtual void wait() {}
  void run(const Step& step) {
    launch(step);
    wait();
  }

  /// Runs steps of the draft model, whose pages have the same numbers; null: there is none.
  virtual StepRunner* draft() { return nullptr; }

  /// Reads and checks an adapter, on any thread. The result loads it into a slot that no step uses;
  /// it is called as `launch` is, while no step is in flight. Throws InvalidArgument.
  virtual std::function<void(int32_t slot)> read_adapter(const WeightSource&) {
    throw InvalidArgument("this model takes no adapters");
  }
};

}  // namespace packhorse
