// Settings that say how the next token of a generated text is chosen, and when the text ends.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "packhorse/export.h"

namespace packhorse {

/// Decides token by token which tokens may come next, for output of a given form (a JSON schema, a
/// regular expression, a list of choices). Its methods are called by the thread of the engine, one
/// at a time: `fill` before a token is chosen, `accept` with the token that was. An exception fails
/// the request that the mask belongs to, with its message, and no other.
class PACKHORSE_API TokenMask {
 public:
  virtual ~TokenMask() = default;
  /// Sets bit t % 32 of word t / 32 where token t is allowed; all words, ceil(vocab_size / 32) of
  /// them, are zero before. Returns false where every token is allowed; the words are then not
  /// read. A mask that allows no token ends the sequence with FinishReason::kStop.
  virtual bool fill(std::span<uint32_t> words) = 0;
  virtual void accept(int32_t token) = 0;
  /// A mask in the same state, for another sequence of the request. A request of several sequences
  /// (`n`, `num_beams`) is refused where this gives null.
  virtual std::unique_ptr<TokenMask> fork() const { return nullptr; }
};

/// When beam search ends; as `early_stopping` of transformers' GenerationConfig.
enum class EarlyStopping : uint8_t {
  kFalse,  // when the best running beam, taken at its present length, is below the worst finished
  kTrue,   // as soon as `num_beams` hypotheses are finished
  kNever,  // when no running beam can become better than the worst finished hypothesis
};

/// A number that is added to the logit of the last of `ids` where the others come right before it.
struct SequenceBias {
  std::vector<int32_t> ids;
  float bias = 0;  // -infinity: the last token may not follow
};

/// From `start` new tokens on, the logit l of tokens that end a sequence grows by
/// |l| * (factor ^ (new tokens - start) - 1).
struct LengthDecay {
  int64_t start = 0;
  double factor = 1;
};

/// Tokens of time in the output of a model of speech (Radford et al. 2022, arXiv 2212.04356): all
/// from `begin` on. They come in pairs of begin and end around the text of a segment, never fall,
/// and a segment lasts. The first token is one of them; a prompt may end with it and text behind
/// it, which are then gone on with. Where they are more probable together than each other token,
/// one of them is chosen.
struct TimestampRules {
  int32_t begin = 0;                   // token of the time 0
  int32_t no_timestamps = -1;          // never chosen; -1: there is none
  int32_t end_of_text = 0;             // the first token that is no text
  std::optional<int64_t> max_initial;  // steps of time up to which the first token may go
};

/// A head of cross attention: its layer, and its number in it.
struct AttentionHead {
  int32_t layer = 0;
  int32_t head = 0;
};

/// Largest Sampling::cache_salt.
inline constexpr int64_t kMostCacheSalt = int64_t{1} << 29;

/// Settings of one request. The defaults choose the most probable token each time.
struct Sampling {
  std::string adapter;  // GenerationSession::add_adapter; empty: the model as it is
  /// New tokens of each sequence at most. Without a value: as many as the context takes.
  std::optional<int64_t> max_new_tokens;
  /// Logits are divided by it; 0: the most probable token, without chance.
  float temperature = 0;
  int64_t top_k = 0;  // the k most probable tokens may be chosen; 0: all
  float top_p = 1;    // the fewest tokens whose probabilities add up to top_p may be chosen
  float min_p = 0;    // tokens less probable than min_p times the most probable one may not
  /// Logits of tokens of the prompt and of the output are divided (positive ones) or multiplied.
  float repetition_penalty = 1;
  float presence_penalty = 0;   // subtracted from the logit of each token that the output has
  float frequency_penalty = 0;  // subtracted from it as often as the output has the token
  std::vector<std::pair<int32_t, float>> logit_bias;  // added to the logits of these tokens
  std::vector<int32_t> allowed_ids;                   // only these may be chosen; empty: all

  // The next settings have the names, meanings and order of transformers' GenerationConfig. Tokens
  // that end a sequence are those of stop_ids and of GenerationOptions::eos_ids.

  std::vector<SequenceBias> sequence_bias;          // what several add to a token adds up
  std::vector<std::vector<int32_t>> bad_words_ids;  // sequences that may not be completed
  int64_t no_repeat_ngram_size = 0;  // no n tokens of prompt and output come twice; 0: they may
  int64_t encoder_no_repeat_ngram_size = 0;    // no n tokens of the source come in the output
  int64_t min_new_tokens = 0;                  // before as many, no token that ends a sequence
  std::vector<int32_t> suppress_tokens;        // may not be chosen
  std::vector<int32_t> begin_suppress_tokens;  // may not be chosen as the first new token
  /// The token after a prompt of a single one.
  std::optional<int32_t> forced_bos_token_id;
  /// The last of `max_new_tokens` is one of these; empty: any. This setting and the one before it
  /// give way to allowed_ids and a mask that have none of their tokens.
  std::vector<int32_t> forced_eos_token_id;
  std::optional<LengthDecay> exponential_decay_length_penalty;

  std::optional<TimestampRules> timestamps;  // in a model whose encoder reads audio
  /// Log-probabilities, also those by which beams are ranked, are those of the tokens that
  /// penalties, masks and the settings above leave, before temperature. In a model whose encoder
  /// reads audio.
  bool filtered_logprobs = false;

  std::shared_ptr<TokenMask> mask;  // for this request alone; null: none

  /// A sequence ends with the first of these, or of GenerationOptions::eos_ids, that it chooses;
  /// the token is its last.
  std::vector<int32_t> stop_ids;
  bool ignore_eos = false;  // eos_ids do not end a sequence; stop_ids do
  /// Seconds from the submission on after which the request ends with what it has.
  std::optional<double> deadline_s;

  /// Equal seeds give equal tokens, whatever else runs. Sequence i of `n` draws from the stream
  /// (seed, i). Without a value: a random one.
  std::optional<uint64_t> seed;
  /// Log-probabilities of the chosen tokens (0), and of the k most probable ones (k), under the
  /// model's own distribution: before penalties, masks and temperature. Without a value: none.
  std::optional<int64_t> logprobs;
  /// Log-probabilities of the prompt's tokens, as `logprobs` says, each after those before it; the
  /// first has none. Such a prompt is computed whole, whatever the prefix cache holds of it. With
  /// filtered_logprobs they are those among allowed_ids.
  std::optional<int64_t> prompt_logprobs;

  /// Heads whose weights over the source are wanted for each of the prompt's tokens, in a model
  /// with cross attention (GenerationRequest::alignment). Such a prompt is computed whole, as for
  /// prompt_logprobs. Empty: none.
  std::vector<AttentionHead> alignment_heads;
  /// Tokens of the source, the first ones, over which those weights add up to 1. Without a value:
  /// all.
  std::optional<int64_t> alignment_source;

  /// Tokens that are drafted for each sequence in a step at most, up to
  /// GenerationOptions::draft_tokens, which holds without a value; 0: none. The text does not
  /// depend on it. Nothing is drafted with a mask, with penalties, for beams, or with settings that
  /// look back at tokens: no_repeat_ngram_size, and sequences of several tokens.
  std::optional<int64_t> draft_tokens;

  /// Requests of equal salts, up to kMostCacheSalt, find each other's prompts in the prefix cache;
  /// others do not, so that usage and time say nothing about what they have sent.
  int64_t cache_salt = 0;

  int64_t n = 1;  // sequences that are wanted; with beam search its best hypotheses
  /// Beam search over this many beams where above 1, as transformers computes it without sampling:
  /// penalties, bias and masks act upon log-probabilities; the other settings of chance must be at
  /// their defaults. Results come at the end, best first.
  int64_t num_beams = 1;
  float length_penalty = 1;  // hypotheses are ranked by sum of logprobs / new tokens ^ it
  EarlyStopping early_stopping = EarlyStopping::kFalse;
  /// Beam search as that of openai-whisper, which ends when round(num_beams * patience) hypotheses
  /// are finished (Kasai et al. 2022, arXiv 2204.05424), and ranks by the length without the token
  /// that ends them. 0: beam search as above.
  float patience = 0;
};

}  // namespace packhorse
