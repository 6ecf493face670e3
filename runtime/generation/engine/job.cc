#include "generation/engine/job.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <random>
#include <span>
#include <utility>

#include "core/format.h"
#include "generation/sampling/masks.h"
#include "generation/sampling/sampling_checks.h"
#include "generation/speculation/drafting.h"
#include "model/spec/spec.h"

namespace packhorse {
namespace {

// Pages that a request holds at most at one time when its sequences have `size` tokens; the last
// token of a sequence is not computed. Beams share the full pages of the prompt.
int64_t pages_at_once(int64_t prompt_tokens, int64_t size, int64_t num_beams) {
  const int64_t pages = pages_of(std::max(prompt_tokens, size - 1));
  const int64_t shared = num_beams > 1 ? prompt_tokens / kPageTokens : 0;
  return shared + num_beams * (pages - shared);
}

// Tokens of prompt and output that each sequence may come to.
int64_t choose_max_size(int64_t prompt_tokens, int64_t source_tokens, const Sampling& sampling,
                        const RunnerLimits& limits) {
  // One new token at least, where any are wanted.
  const int64_t least = prompt_tokens + std::min<int64_t>(1, sampling.max_new_tokens.value_or(1));
  if (least > limits.max_context) {
    throw InvalidArgument(concat("the prompt has ", prompt_tokens, " tokens, expected at most ",
                                 limits.max_context - (least - prompt_tokens), ": the context is ",
                                 limits.max_context, " tokens, new ones included"));
  }
  const auto pages_of_request = [&](int64_t size) {
    return pages_of(source_tokens) + pages_at_once(prompt_tokens, size, sampling.num_beams);
  };
  const auto fits = [&](int64_t size) { return pages_of_request(size) <= limits.num_pages; };
  // Not above the context; compared without a sum that could overflow. Who asks for more than the
  // context takes wants as many as there can be, as who asks for no number does.
  const int64_t room = limits.max_context - prompt_tokens;
  const bool open = sampling.max_new_tokens.value_or(room) >= room;
  int64_t size = prompt_tokens + std::min(room, sampling.max_new_tokens.value_or(room));
  // Who asks for the whole context, or for more, takes what the cache has of it.
  if (open) {
    while (size > least && !fits(size)) --size;
  }
  if (fits(size)) return size;
  throw InvalidArgument(
      concat("the request needs ", pages_of_request(size) * kPageTokens, " tokens of cache (",
             source_tokens > 0 ? concat("source of ", source_tokens, ", ") : "", "prompt of ",
             prompt_tokens, ", ", size - prompt_tokens, " new ones, num_beams ", sampling.num_beams,
             ", in pages of ", kPageTokens, "), but the cache holds ",
             limits.num_pages * kPageTokens, " (kv_tokens): it can never run"));
}

uint64_t random_seed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

std::vector<int32_t> merge_stop_ids(const Sampling& sampling, const GenerationOptions& options) {
  std::vector<int32_t> ids = sampling.stop_ids;
  if (!sampling.ignore_eos) ids.insert(ids.end(), options.eos_ids.begin(), options.eos_ids.end());
  std::ranges::sort(ids);
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

void check_prompt(std::span<const int32_t> ids, const RunnerLimits& limits) {
  if (ids.empty()) throw InvalidArgument("the prompt is empty, expected at least one token");
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < limits.vocab_size) continue;
    throw InvalidArgument(
        concat("ids[", i, "] = ", ids[i], ", expected 0 to ", limits.vocab_size - 1));
  }
}

void check_source(std::span<const int32_t> ids, const RunnerLimits& limits) {
  if (limits.source_features > 0) {
    throw InvalidArgument(
        "there are no features of a source: this model's encoder reads frames of "
        "audio, no ids");
  }
  if (limits.max_source == 0) {
    if (ids.empty()) return;
    throw InvalidArgument("there is a source, expected none: this model has no encoder");
  }
  if (ids.empty()) {
    throw InvalidArgument("the source is empty, expected at least one token: this model reads one");
  }
  if (std::ssize(ids) > limits.max_source) {
    throw InvalidArgument(concat("the source has ", ids.size(), " tokens, expected at most ",
                                 limits.max_source, " (max_tokens, or the model's longest)"));
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < limits.source_vocab_size) continue;
    throw InvalidArgument(
        concat("source[", i, "] = ", ids[i], ", expected 0 to ", limits.source_vocab_size - 1));
  }
}

void check_features(const SourceFeatures& features, const RunnerLimits& limits) {
  const int64_t columns = limits.source_features;
  if (columns == 0) {
    throw InvalidArgument(
        "there are features of a source, expected none: this model's encoder "
        "reads no audio");
  }
  const int64_t mels = columns / kAudioStride;
  const auto size = std::ssize(features.values);
  if (features.columns != mels || size == 0 || size % columns != 0) {
    throw InvalidArgument(concat("the source has ", size, " numbers in frames of ",
                                 features.columns, ", expected frames of ", mels,
                                 " and an even number of them, 2 at least"));
  }
  if (size / columns > limits.max_source) {
    throw InvalidArgument(concat("the source has ", size / mels, " frames, expected at most ",
                                 kAudioStride * limits.max_source,
                                 " (twice max_tokens, or the model's longest)"));
  }
  // Exponents of infinities and NaN are the largest. A maximum is vector code, a search is none.
  uint32_t largest = 0;
  for (const float value : features.values) {
    largest = std::max(largest, std::bit_cast<uint32_t>(value) & 0x7fffffffu);
  }
  if (largest < 0x7f800000u) return;
  for (size_t i = 0; i < features.values.size(); ++i) {
    if (std::isfinite(features.values[i])) continue;
    const auto number = static_cast<int64_t>(i);
    throw InvalidArgument(concat("frame ", number / mels, " of the source has ", features.values[i],
                                 " at ", number % mels, ", expected finite numbers"));
  }
}

// Numbers that stand for the tokens of audio, by which equal sources are found: each depends on the
// frames of its token and on all before them.
std::vector<int32_t> digest(const SourceFeatures& features, int64_t columns) {
  const auto add = [](uint64_t& hash, uint64_t bits) {
    hash = (hash ^ bits) * 0xd6e8feb86659fd93u;
    hash ^= hash >> 29;
  };
  // Several chains side by side: each link waits for the one before.
  constexpr size_t kChains = 8;
  std::array<uint64_t, kChains> chains = {};
  uint64_t hash = 0x9e3779b97f4a7c15u;
  const auto size = static_cast<size_t>(columns);
  std::vector<int32_t> ids;
  ids.reserve(features.values.size() / size);
  for (size_t first = 0; first < features.values.size(); first += size) {
    const std::span<const float> token = std::span(features.values).subspan(first, size);
    size_t i = 0;
    for (; i + kChains <= size; i += kChains) {
      for (size_t chain = 0; chain < kChains; ++chain) {
        add(chains[chain], std::bit_cast<uint32_t>(token[i + chain]));
      }
    }
    for (; i < size; ++i) add(hash, std::bit_cast<uint32_t>(token[i]));
    for (const uint64_t chain : chains) add(hash, chain);
    ids.push_back(static_cast<int32_t>(hash >> 33));
  }
  return ids;
}

void reserve(Sequence& sequence, const Job& job, size_t num_top, size_t mask_words) {
  const auto size = static_cast<size_t>(job.max_size);
  sequence.tokens.reserve(size);
  if (job.search) sequence.logprobs.reserve(size - static_cast<size_t>(job.prompt_tokens));
  sequence.pages.reserve(static_cast<size_t>(pages_of(job.max_size)));
  sequence.top.resize(num_top);
  sequence.mask_words.resize(mask_words);
}

// Takes the room for weights over the source.
void plan_alignment(Job& job) {
  const Sampling& sampling = job.sampling;
  const int64_t source = std::ssize(job.source);
  const int64_t wanted = sampling.alignment_source.value_or(source);
  if (sampling.alignment_heads.empty()) {
    if (!sampling.alignment_source) return;
    throw InvalidArgument(concat("alignment_source is ", wanted,
                                 " without alignment_heads, expected these beside it"));
  }
  if (wanted < 1 || wanted > source) {
    throw InvalidArgument(concat("alignment_source is ", wanted, ", expected 1 to ", source,
                                 ", the tokens of the source"));
  }
  job.alignment.source_tokens = wanted;
  job.alignment.values.resize(sampling.alignment_heads.size() *
                              static_cast<size_t>(job.prompt_tokens * wanted));
}

std::shared_ptr<TokenMask> fork_mask(const TokenMask& mask) {
  if (auto fork = mask.fork()) return fork;
  throw InvalidArgument(
      "the mask cannot be forked, so that it can serve one sequence only: expected n = 1 and "
      "num_beams = 1");
}

}  // namespace

std::unique_ptr<Job> make_job(std::span<const int32_t> ids, const Sampling& sampling,
                              const RunnerLimits& limits, const GenerationOptions& options,
                              std::span<const int32_t> source,
                              std::shared_ptr<const SourceFeatures> features) {
  auto job = std::make_unique<Job>();
  job->stop_ids = merge_stop_ids(sampling, options);
  check_sampling(sampling, job->stop_ids.size(), limits);
  check_prompt(ids, limits);
  std::vector<int32_t> numbers;
  if (features != nullptr) {
    check_features(*features, limits);
    numbers = digest(*features, limits.source_features);
    source = numbers;
  } else {
    check_source(source, limits);
  }
  job->features = std::move(features);
  job->sampling = sampling;
  job->seed = sampling.seed ? *sampling.seed : random_seed();
  job->prompt_tokens = static_cast<int64_t>(ids.size());
  job->source.assign(source.begin(), source.end());
  job->source_pages.reserve(static_cast<size_t>(pages_of(std::ssize(source))));
  job->max_size = choose_max_size(job->prompt_tokens, std::ssize(source), sampling, limits);
  TokenRules& rules = job->rules.emplace(job->sampling, job->stop_ids, job->prompt_tokens,
                                         job->max_size, job->source);
  const bool looks_back = rules.read_tokens();
  if (!rules.any()) job->rules.reset();
  job->deadline = after(sampling.deadline_s.value_or(kNoTimeout));
  job->request =
      std::make_shared<Request>(sampling, job->prompt_tokens, job->max_size - job->prompt_tokens);

  auto num_top = static_cast<size_t>(sampling.logprobs.value_or(0));
  const bool searches = sampling.num_beams > 1;
  if (searches) {
    const int64_t count =
        candidates_per_beam(sampling.num_beams, job->stop_ids.size(), limits.vocab_size);
    if (count > kMaxTopTokens) {
      throw InvalidArgument(concat("num_beams ", sampling.num_beams, " with ", job->stop_ids.size(),
                                   " stop ids compares ", count,
                                   " tokens for each beam, expected at most ", kMaxTopTokens));
    }
    num_top = static_cast<size_t>(count);
    job->search.emplace(BeamSettings{sampling.num_beams, sampling.length_penalty,
                                     sampling.early_stopping, job->max_size - job->prompt_tokens,
                                     job->stop_ids, sampling.patience});
  }
  plan_alignment(*job);
  job->allowed_words = words_of(sampling.allowed_ids, limits.vocab_size);
  const bool masks = sampling.mask != nullptr || !sampling.allowed_ids.empty();
  const size_t words = masks ? num_words(limits.vocab_size) : 0;
  job->sequences.resize(static_cast<size_t>(searches ? sampling.num_beams : sampling.n));
  job->spare.resize(searches ? job->sequences.size() : 0);
  for (size_t i = 0; i < job->sequences.size(); ++i) {
    Sequence& sequence = job->sequences[i];
    sequence.job = job.get();
    sequence.index = i;
    reserve(sequence, *job, num_top, words);
    if (sampling.mask != nullptr) {
      sequence.mask = job->sequences.size() == 1 ? sampling.mask : fork_mask(*sampling.mask);
    }
    sequence.tokens.assign(ids.begin(), ids.end());
    if (searches && i > 0) sequence.state = Sequence::State::kNotStarted;
  }
  add_speculation(*job, options);
  for (Sequence& sequence : job->sequences) {
    sequence.plain = !searches && !masks && !looks_back && !sampling.prompt_logprobs &&
                     sampling.alignment_heads.empty() && sequence.speculation == nullptr;
  }
  for (Sequence& sequence : job->spare) {
    sequence.job = job.get();
    reserve(sequence, *job, num_top, words);
  }
  if (sampling.prompt_logprobs) {
    const auto rows = static_cast<size_t>(job->prompt_tokens - 1);
    job->prompt_logprobs.logprobs.resize(rows);
    job->prompt_logprobs.top.resize(rows * static_cast<size_t>(*sampling.prompt_logprobs));
  }
  return job;
}

}  // namespace packhorse
