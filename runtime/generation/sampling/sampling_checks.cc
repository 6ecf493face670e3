#include "generation/sampling/sampling_checks.h"

#include <cmath>
#include <set>
#include <string>

#include "core/format.h"

namespace packhorse {
namespace {

template <class Value>
void expect(bool holds, const char* name, const Value& found, const std::string& expected) {
  if (!holds) throw InvalidArgument(concat(name, " is ", found, ", expected ", expected));
}

void check_id(const char* name, int32_t id, int64_t vocab_size) {
  expect(id >= 0 && id < vocab_size, name, id, concat("a token id from 0 to ", vocab_size - 1));
}

void check_logprobs(const char* name, const std::optional<int64_t>& count, int64_t vocab_size) {
  if (!count) return;
  const int64_t most = std::min(kMaxTopTokens, vocab_size);
  expect(*count >= 0 && *count <= most, name, *count, concat("0 to ", most));
}

void check_rules(const Sampling& sampling, const RunnerLimits& limits) {
  const auto check_ids = [&](const char* name, const std::vector<int32_t>& ids) {
    for (const int32_t id : ids) check_id(name, id, limits.vocab_size);
  };
  const auto check_sequence = [&](const char* name, const std::vector<int32_t>& ids) {
    expect(!ids.empty(), name, "empty", "a token or more");
    check_ids(concat("a token of ", name).c_str(), ids);
  };
  for (const SequenceBias& sequence : sampling.sequence_bias) {
    check_sequence("a sequence of sequence_bias", sequence.ids);
    expect(!std::isnan(sequence.bias) && sequence.bias != INFINITY, "a bias of sequence_bias",
           sequence.bias, "a number, or -inf");
  }
  for (const std::vector<int32_t>& ids : sampling.bad_words_ids) {
    check_sequence("a sequence of bad_words_ids", ids);
  }
  const int64_t size = sampling.no_repeat_ngram_size;
  expect(size >= 0, "no_repeat_ngram_size", size, "1 or more, or 0 for no limit");
  const int64_t copied = sampling.encoder_no_repeat_ngram_size;
  expect(copied >= 0 && (copied == 0 || limits.max_source > 0), "encoder_no_repeat_ngram_size",
         copied, "1 or more in a model with an encoder, or 0 for no limit");
  expect(sampling.min_new_tokens >= 0, "min_new_tokens", sampling.min_new_tokens, "0 or more");
  check_ids("an id of suppress_tokens", sampling.suppress_tokens);
  check_ids("an id of begin_suppress_tokens", sampling.begin_suppress_tokens);
  if (const auto& id = sampling.forced_bos_token_id) {
    check_id("forced_bos_token_id", *id, limits.vocab_size);
  }
  check_ids("an id of forced_eos_token_id", sampling.forced_eos_token_id);
  if (const auto& decay = sampling.exponential_decay_length_penalty) {
    const char* const name = "exponential_decay_length_penalty";
    expect(decay->start >= 0, name, concat("(", decay->start, ", ...)"), "a start from 0 on");
    expect(std::isfinite(decay->factor) && decay->factor > 0, name,
           concat("(..., ", decay->factor, ")"), "a factor above 0");
  }
}

void check_speech(const Sampling& sampling, const RunnerLimits& limits) {
  expect(!sampling.filtered_logprobs || limits.source_features > 0, "filtered_logprobs", true,
         "false in a model whose encoder reads no audio");
  expect(std::isfinite(sampling.patience) && sampling.patience >= 0, "patience", sampling.patience,
         "a number above 0, or 0 for none");
  if (!sampling.timestamps) return;
  const TimestampRules& rules = *sampling.timestamps;
  expect(limits.source_features > 0, "timestamps", "there",
         "none in a model whose encoder reads no audio");
  check_id("timestamps.begin", rules.begin, limits.vocab_size);
  check_id("timestamps.end_of_text", rules.end_of_text, limits.vocab_size);
  if (rules.no_timestamps >= 0) {
    check_id("timestamps.no_timestamps", rules.no_timestamps, limits.vocab_size);
  }
  expect(rules.max_initial.value_or(0) >= 0, "timestamps.max_initial",
         rules.max_initial.value_or(0), "0 or more");
}

void check_alignment(const Sampling& sampling, const RunnerLimits& limits) {
  const std::vector<AttentionHead>& heads = sampling.alignment_heads;
  if (heads.empty()) return;
  expect(limits.cross_layers > 0, "alignment_heads", "given",
         "none in a model without cross attention");
  expect(std::ssize(heads) <= limits.cross_layers * limits.cross_heads,
         "the number of alignment_heads", heads.size(),
         concat("at most the ", limits.cross_layers * limits.cross_heads, " heads of the model"));
  for (const AttentionHead& one : heads) {
    const bool known = one.layer >= 0 && one.layer < limits.cross_layers && one.head >= 0 &&
                       one.head < limits.cross_heads;
    expect(known, "one of alignment_heads", concat("(", one.layer, ", ", one.head, ")"),
           concat("a layer from 0 to ", limits.cross_layers - 1, " and a head from 0 to ",
                  limits.cross_heads - 1));
  }
}

void check_beams(const Sampling& sampling, const RunnerLimits& limits) {
  expect(sampling.num_beams <= limits.max_sequences, "num_beams", sampling.num_beams,
         concat("at most max_sequences ", limits.max_sequences, ", beams run at once"));
  expect(sampling.n <= sampling.num_beams, "n", sampling.n,
         concat("at most num_beams ", sampling.num_beams));
  expect(sampling.temperature == 0, "temperature", sampling.temperature,
         "0: beam search draws nothing");
  const std::string off = "its default: beam search draws nothing";
  expect(sampling.top_k == 0, "top_k", sampling.top_k, off);
  expect(sampling.top_p == 1, "top_p", sampling.top_p, off);
  expect(sampling.min_p == 0, "min_p", sampling.min_p, off);
  expect(sampling.logprobs.value_or(0) == 0, "logprobs", sampling.logprobs.value_or(0),
         "0 or none with beam search");
  expect(std::isfinite(sampling.length_penalty), "length_penalty", sampling.length_penalty,
         "a number");
}

}  // namespace

void check_sampling(const Sampling& sampling, size_t num_stop_ids, const RunnerLimits& limits) {
  const int64_t new_tokens = sampling.max_new_tokens.value_or(1);
  expect(new_tokens >= 0, "max_new_tokens", new_tokens, "0 or more");
  const float temperature = sampling.temperature;
  expect(std::isfinite(temperature) && temperature >= 0, "temperature", temperature, "0 or more");
  expect(sampling.top_k >= 0, "top_k", sampling.top_k, "1 or more, or 0 for all tokens");
  expect(sampling.top_p > 0 && sampling.top_p <= 1, "top_p", sampling.top_p, "above 0, at most 1");
  expect(sampling.min_p >= 0 && sampling.min_p <= 1, "min_p", sampling.min_p, "0 to 1");
  const float repetition = sampling.repetition_penalty;
  expect(std::isfinite(repetition) && repetition > 0, "repetition_penalty", repetition, "above 0");
  expect(std::isfinite(sampling.presence_penalty), "presence_penalty", sampling.presence_penalty,
         "a number");
  expect(std::isfinite(sampling.frequency_penalty), "frequency_penalty", sampling.frequency_penalty,
         "a number");
  // Tokens with biases, and with boosts.
  size_t biases = sampling.logit_bias.size() + sampling.sequence_bias.size();
  if (sampling.exponential_decay_length_penalty) biases += num_stop_ids;
  expect(static_cast<int64_t>(biases) <= kMostBiases,
         "the number of entries of logit_bias and sequence_bias, and of tokens with a length "
         "penalty,",
         biases, concat("at most ", kMostBiases));
  std::set<int32_t> biased;
  for (const auto& [id, bias] : sampling.logit_bias) {
    expect(biased.insert(id).second, "a token of logit_bias", id, "each token once");
    check_id("a token of logit_bias", id, limits.vocab_size);
    expect(!std::isnan(bias) && bias != INFINITY, "a bias of logit_bias", bias,
           "a number, or -inf");
  }
  for (const int32_t id : sampling.allowed_ids)
    check_id("an id of allowed_ids", id, limits.vocab_size);
  check_rules(sampling, limits);
  check_speech(sampling, limits);
  check_alignment(sampling, limits);
  for (const int32_t id : sampling.stop_ids) check_id("an id of stop_ids", id, limits.vocab_size);
  if (sampling.deadline_s) {
    expect(*sampling.deadline_s > 0, "deadline_s", *sampling.deadline_s, "above 0 seconds");
  }
  expect(sampling.cache_salt >= 0 && sampling.cache_salt <= kMostCacheSalt, "cache_salt",
         sampling.cache_salt, concat("0 to ", kMostCacheSalt));
  check_logprobs("logprobs", sampling.logprobs, limits.vocab_size);
  check_logprobs("prompt_logprobs", sampling.prompt_logprobs, limits.vocab_size);
  constexpr int64_t kMostSequences = 1024;
  expect(sampling.n >= 1 && sampling.n <= kMostSequences, "n", sampling.n,
         concat("1 to ", kMostSequences));
  expect(sampling.num_beams >= 1, "num_beams", sampling.num_beams, "1 or more");
  if (sampling.num_beams > 1) {
    check_beams(sampling, limits);
    expect(new_tokens > 0, "max_new_tokens", new_tokens, "1 or more with beam search");
  }
}

void check_options(const GenerationOptions& options) {
  constexpr int64_t kMost = int64_t{1} << 30;
  const auto positive = [](const char* name, int64_t value) {
    expect(value >= 1 && value <= kMost, name, value, "1 to 2^30");
  };
  positive("max_tokens", options.max_tokens);
  positive("max_sequences", options.max_sequences);
  positive("max_queue", options.max_queue);
  if (options.kv_tokens) positive("kv_tokens", *options.kv_tokens);
  expect(options.max_sequences <= options.max_tokens, "max_sequences", options.max_sequences,
         concat("at most max_tokens ", options.max_tokens,
                ": each sequence that runs has a token in each step"));
  expect(options.threads >= 0 && options.threads <= 4096, "threads", options.threads,
         "1 to 4096, or 0 for all cores");
}

}  // namespace packhorse
