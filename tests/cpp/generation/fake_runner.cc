#include "fake_runner.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "core/math.h"

namespace packhorse::test {
namespace {

// Returns a number in (0, 1).
double unit(uint64_t hash) { return (static_cast<double>(hash >> 12) + 0.5) * 0x1p-52; }

void expect(bool holds, const char* rule) {
  if (!holds) throw RuntimeError(std::string("the step breaks a rule: ") + rule);
}

}  // namespace

uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9e3779b97f4a7c15u ^ (b + 0x632be59bd9b4e019u);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

std::vector<uint64_t> FakeModel::source_keys(std::span<const int32_t> source) {
  uint64_t whole = source.size();
  for (const int32_t id : source) whole = mix(whole, static_cast<uint64_t>(id));
  std::vector<uint64_t> keys;
  for (size_t i = 0; i < source.size(); ++i) keys.push_back(mix(whole, i));
  return keys;
}

std::vector<float> FakeModel::logprobs(uint64_t sum, int32_t last) const {
  std::vector<float> logits(static_cast<size_t>(vocab_size));
  if (flaw > 0 && sum % flaw == 0) sum = mix(sum, flaw);
  const bool follows = repeats > 0 && mix(sum, repeats) % repeats != 0;
  const auto next = static_cast<size_t>((last * 7 + 3) % vocab_size);
  double total = 0;
  for (size_t t = 0; t < logits.size(); ++t) {
    logits[t] = static_cast<float>(6 * unit(mix(sum, t)) + (follows && t == next ? 12 : 0));
    total += std::exp(double{logits[t]});
  }
  for (float& logit : logits) logit -= static_cast<float>(std::log(total));
  return logits;
}

std::vector<float> FakeModel::processed(std::vector<float> scores, const StepSampler& sampler) {
  const Sampling& sampling = *sampler.sampling;
  const std::set<int32_t> seen(sampler.history.begin(), sampler.history.end());
  for (const int32_t t : seen) {
    float& score = scores[size_t(t)];
    score = score < 0 ? score * sampling.repetition_penalty : score / sampling.repetition_penalty;
  }
  RuleEffects effects;
  effects.biases = sampling.logit_bias;
  if (sampler.rules != nullptr) {
    sampler.rules->apply(sampler.history, sampler.num_new_tokens, effects);
  }
  for (const auto& [t, bias] : effects.biases) scores[size_t(t)] += bias;
  std::vector<uint32_t> allowed(ceil_div(scores.size(), 32));
  const bool flat = write_allowed(effects, sampler.mask, allowed);
  if (flat) std::ranges::fill(scores, 0.0f);
  for (const int32_t t : effects.boosted) {
    scores[size_t(t)] += std::abs(scores[size_t(t)]) * effects.boost;
  }
  for (size_t t = 0; t < scores.size(); ++t) {
    if ((allowed[t / 32] >> (t % 32) & 1) == 0) scores[t] = -INFINITY;
  }
  return scores;
}

int32_t FakeModel::choose(const std::vector<float>& scores, const StepSampler& sampler) {
  const uint64_t stream = mix(mix(sampler.seed, sampler.stream), uint64_t(sampler.num_new_tokens));
  double best = -INFINITY;
  int32_t chosen = -1;
  for (size_t t = 0; t < scores.size(); ++t) {
    double score = double{scores[t]};
    if (sampler.sampling->temperature > 0) {  // Gumbel's trick
      score = score / sampler.sampling->temperature - std::log(-std::log(unit(mix(stream, t))));
    }
    if (score > best) best = score, chosen = static_cast<int32_t>(t);
  }
  return chosen;
}

void FakeModel::take_top(const std::vector<float>& scores, std::span<TokenLogprob> top) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater<>(), [&](int32_t t) { return scores[size_t(t)]; });
  for (size_t i = 0; i < top.size(); ++i) top[i] = {order[i], scores[size_t(order[i])]};
}

void FakeModel::sample(uint64_t sum, int32_t last, const StepSampler& sampler, TokenLogprob* chosen,
                       std::span<TokenLogprob> top) const {
  const std::vector<float> raw = logprobs(sum, last);
  const std::vector<float> scores = processed(raw, sampler);
  if (sampler.sampling->num_beams > 1) return take_top(scores, top);
  const int32_t token = choose(scores, sampler);
  *chosen = {token, token < 0 ? 0 : raw[size_t(token)]};
  take_top(raw, top);
}

// A sequence's part in a step that was launched, with all that the step reads of it.
struct FakeRunner::Part {
  SequenceSlice sequence;
  std::vector<int32_t> ids, pages, history, targets, source_pages;
  std::vector<uint32_t> mask;
  std::vector<TokenLogprob> chosen;  // [1 + drafts]
  std::vector<TokenLogprob> top;
};

struct FakeRunner::Launched {
  Launched(const Step& step, uint64_t of_number)
      : number(of_number),
        copies(step.copies.begin(), step.copies.end()),
        parts(step.sequences.size()) {
    for (const SourceSlice& source : step.sources) {
      sources.push_back(
          {{source.ids.begin(), source.ids.end()}, {source.pages.begin(), source.pages.end()}});
    }
    const auto keep = [](auto& to, auto& span) {
      to.assign(span.begin(), span.end());
      span = to;
    };
    for (size_t i = 0; i < parts.size(); ++i) {
      Part& part = parts[i];
      part.sequence = step.sequences[i];
      keep(part.ids, part.sequence.ids);
      keep(part.pages, part.sequence.pages);
      keep(part.source_pages, part.sequence.source_pages);
      keep(part.targets, part.sequence.targets);
      keep(part.history, part.sequence.sampler.history);
      keep(part.mask, part.sequence.sampler.mask);
      part.top.resize(part.sequence.top.size());
      part.chosen.resize(1 + static_cast<size_t>(part.sequence.drafts));
    }
  }

  uint64_t number;
  struct Source {
    std::vector<int32_t> ids, pages;
  };
  std::vector<PageCopy> copies;
  std::vector<Source> sources;
  std::vector<Part> parts;
  bool fails = false;
  bool done = false;
  std::string error;
};

FakeRunner::FakeRunner(const RunnerLimits& limits, bool overlaps, uint64_t repeats, uint64_t flaw,
                       std::unique_ptr<FakeRunner> draft)
    : limits_(limits),
      overlaps_(overlaps),
      model_{limits.vocab_size, repeats, flaw},
      draft_(std::move(draft)),
      cache_(static_cast<size_t>(limits.num_pages * kPageTokens), 0xdead),
      slots_(static_cast<size_t>(limits.max_sequences)) {
  plan_.kv_tokens = limits.num_pages * kPageTokens;
  plan_.bytes_per_token = sizeof(uint64_t);
  plan_.kv_cache.bytes = cache_.size() * sizeof(uint64_t);
}

FakeRunner::~FakeRunner() = default;

void FakeRunner::launch(const Step& step) {
  expect(in_flight_.size() < (overlaps_ ? kMostInFlight : 1), "few steps are in flight");
  const auto number = static_cast<uint64_t>(++steps);
  check(step);
  Launched launched(step, number);
  launched.fails = fail_in > 0 && --fail_in == 0;
  if (launched.fails && mix(number, 1) % 2 == 0) {
    for (Launched& before : in_flight_) perform(before);
    perform(launched);
    throw RuntimeError(launched.error);
  }
  in_flight_.push_back(std::move(launched));
  if (in_flight_.size() > 1) ++overlapped;
  if (overlaps_ && mix(number, 2) % 2 == 0) return;
  for (Launched& before : in_flight_) perform(before);
}

void FakeRunner::wait() {
  wait_until_let_go();
  expect(!in_flight_.empty(), "a step is in flight");
  Launched& oldest = in_flight_.front();
  perform(oldest);
  if (!oldest.error.empty()) {
    const RuntimeError error(oldest.error);
    for (Launched& after : in_flight_) perform(after);
    in_flight_.clear();
    throw error;
  }
  for (Part& part : oldest.parts) {
    if (!part.sequence.sample) continue;
    std::ranges::copy(part.chosen, part.sequence.chosen);
    std::ranges::copy(part.top, part.sequence.top.begin());
  }
  in_flight_.erase(in_flight_.begin());
}

std::function<void(int32_t)> FakeRunner::read_adapter(const WeightSource&) {
  return [this](int32_t) { expect(in_flight_.empty(), "adapters come between steps"); };
}

void FakeRunner::perform(Launched& step) {
  if (std::exchange(step.done, true)) return;
  for (const PageCopy& copy : step.copies) {
    for (int64_t i = 0; i < kPageTokens; ++i) {
      at(copy.to, i) = i < copy.tokens ? at(copy.from, i) : 0xdead;
    }
  }
  for (const Launched::Source& source : step.sources) {
    const std::vector<uint64_t> keys = FakeModel::source_keys(source.ids);
    for (size_t i = 0; i < keys.size(); ++i) {
      at(source.pages[i / size_t(kPageTokens)], int64_t(i) % kPageTokens) = keys[i];
    }
  }
  try {
    for (Part& part : step.parts) {
      compute(part, step.number);
      // Half of the step was done: what it has written must not be used.
      if (step.fails) throw RuntimeError("the fake device is lost");
    }
  } catch (const RuntimeError& error) {
    step.error = error.message();
  }
}

void FakeRunner::wait_until_let_go() {
  std::unique_lock lock(mutex_);
  held_ = true;
  changed_.notify_all();
  changed_.wait(lock, [&] { return allowed_ > 0; });
  held_ = false;
  --allowed_;
}

void FakeRunner::check(const Step& step) {
  expect(!step.sequences.empty(), "has sequences");
  expect(static_cast<int64_t>(step.sequences.size()) <= limits_.max_sequences, "max_sequences");
  int64_t tokens = 0;
  std::vector<int> users(static_cast<size_t>(limits_.num_pages));
  std::set<int32_t> slots;
  int64_t drafts = 0;
  for (const SequenceSlice& sequence : step.sequences) {
    tokens += static_cast<int64_t>(sequence.ids.size());
    expect(!sequence.ids.empty(), "each sequence has tokens");
    expect(sequence.kv_len() <= limits_.max_context, "max_context");
    expect(static_cast<int64_t>(sequence.pages.size()) == ceil_div(sequence.kv_len(), kPageTokens),
           "the table covers the tokens");
    for (const int32_t page : sequence.pages) {
      expect(page >= 0 && page < limits_.num_pages, "pages exist");
      ++users[size_t(page)];
    }
    drafts += sequence.drafts;
    expect(sequence.drafts == 0 || (sequence.sample && sequence.drafts < std::ssize(sequence.ids)),
           "drafts come after a token");
    if (sequence.pending) {
      expect(sequence.sample && !sequence.sampler.restart && sequence.ids.size() == 1 &&
                 !in_flight_.empty(),
             "what is pending goes on");
    }
    if (!sequence.sample) continue;
    expect(slots.insert(sequence.sampler.slot).second, "one sequence for each slot");
  }
  int64_t read = 0;
  for (const SourceSlice& source : step.sources) {
    read += static_cast<int64_t>(source.ids.size());
    expect(!source.ids.empty() && std::ssize(source.ids) <= limits_.max_source, "max_source");
    expect(std::ssize(source.pages) == ceil_div(std::ssize(source.ids), kPageTokens),
           "the table covers the source");
    for (const int32_t page : source.pages) {
      expect(users[size_t(page)]++ == 0, "a page of a source that is read is of nothing else");
    }
  }
  expect(read <= limits_.max_tokens, "max_tokens of sources");
  sources_read += std::ssize(step.sources);
  expect(drafts <= kMostDraftedRows, "kMostDraftedRows");
  expect(tokens == step.num_tokens && tokens <= limits_.max_tokens, "max_tokens");
  for (const SequenceSlice& sequence : step.sequences) {
    for (auto i = size_t(sequence.position / kPageTokens); i < sequence.pages.size(); ++i) {
      expect(users[size_t(sequence.pages[i])] == 1, "a page that is written is of one sequence");
    }
  }
  computed += tokens;
  copies += static_cast<int64_t>(step.copies.size());
}

// Fills in what is pending, and checks the slot.
void FakeRunner::begin(Part& part, uint64_t number) {
  StepSampler& sampler = part.sequence.sampler;
  Slot& slot = slots_.at(size_t(sampler.slot));
  if (part.sequence.pending) {
    expect(slot.step + 1 == number, "what is pending comes from the step before");
    part.ids.back() = std::max(slot.chosen, 0);  // none: what comes of it is not used
    part.history.push_back(part.ids.back());
    sampler.history = part.history;
  }
  if (sampler.history.empty()) return;
  if (!sampler.restart) {
    slot.history.push_back(part.ids[part.ids.size() - part.chosen.size()]);
    expect(std::ranges::equal(slot.history, sampler.history), "the slot's history goes on");
  }
  expect(static_cast<int64_t>(sampler.history.size()) ==
             sampler.prompt_tokens + sampler.num_new_tokens,
         "the history has prompt and new tokens");
  slot.history.assign(sampler.history.begin(), sampler.history.end());
}

void FakeRunner::compute(Part& part, uint64_t number) {
  SequenceSlice& sequence = part.sequence;
  if (sequence.sample) begin(part, number);
  uint64_t sum = 0;
  for (int64_t i = 0; i < sequence.source_tokens; ++i) {
    sum += at(sequence.source_pages[size_t(i / kPageTokens)], i % kPageTokens);
  }
  for (int64_t i = 0; i < sequence.position; ++i) {
    sum += at(sequence.pages[size_t(i / kPageTokens)], i % kPageTokens);
  }
  for (size_t row = 0; row < sequence.ids.size(); ++row) {
    const int64_t position = sequence.position + static_cast<int64_t>(row);
    const uint64_t key = FakeModel::key(sum, sequence.ids[row], position);
    at(sequence.pages[size_t(position / kPageTokens)], position % kPageTokens) = key;
    sum += key;
    if (sequence.sample) sample(part, row, sum, number);
    if (row >= sequence.targets.size()) continue;
    const std::vector<float> logprobs = model_.logprobs(sum, sequence.ids[row]);
    sequence.target_logprobs[row] = logprobs[size_t(sequence.targets[row])];
    const size_t num_top = sequence.target_top.size() / sequence.targets.size();
    FakeModel::take_top(logprobs, sequence.target_top.subspan(row * num_top, num_top));
  }
}

// Chooses the token after a row, where one is to be chosen.
void FakeRunner::sample(Part& part, size_t row, uint64_t sum, uint64_t number) {
  const SequenceSlice& sequence = part.sequence;
  const size_t rows = part.chosen.size();
  const size_t first = sequence.ids.size() - rows;
  if (row < first) return;
  StepSampler sampler = sequence.sampler;
  sampler.num_new_tokens += static_cast<int64_t>(row - first);
  const size_t num_top = part.top.size() / rows;
  model_.sample(sum, sequence.ids[row], sampler, &part.chosen[row - first],
                std::span(part.top).subspan((row - first) * num_top, num_top));
  slots_[size_t(sampler.slot)].chosen = part.chosen.back().id;
  slots_[size_t(sampler.slot)].step = number;
  ++sampled;
}

GeneratedSequence generate_alone(const FakeModel& model, std::span<const int32_t> prompt,
                                 const Sampling& sampling, uint64_t stream, int64_t max_context,
                                 std::span<const int32_t> source) {
  GeneratedSequence result;
  std::vector<int32_t> tokens(prompt.begin(), prompt.end());
  uint64_t sum = 0;
  for (const uint64_t key : FakeModel::source_keys(source)) sum += key;
  size_t computed = 0;
  while (result.finish_reason == FinishReason::kNone) {
    for (; computed < tokens.size(); ++computed) {
      sum += FakeModel::key(sum, tokens[computed], static_cast<int64_t>(computed));
    }
    StepSampler sampler;
    sampler.sampling = &sampling;
    sampler.seed = sampling.seed.value_or(0);
    sampler.stream = stream;
    sampler.num_new_tokens = static_cast<int64_t>(result.ids.size());
    sampler.history = tokens;
    TokenLogprob chosen;
    std::vector<TokenLogprob> top(static_cast<size_t>(sampling.logprobs.value_or(0)));
    model.sample(sum, tokens.back(), sampler, &chosen, top);
    tokens.push_back(chosen.id);
    result.ids.push_back(chosen.id);
    if (sampling.logprobs) {
      result.logprobs.push_back(chosen.logprob);
      result.top_logprobs.insert(result.top_logprobs.end(), top.begin(), top.end());
    }
    const auto size = static_cast<int64_t>(tokens.size());
    const auto num_new = static_cast<int64_t>(result.ids.size());
    if (std::ranges::find(sampling.stop_ids, chosen.id) != sampling.stop_ids.end()) {
      result.finish_reason = FinishReason::kStop;
    } else if (size >= max_context || num_new >= sampling.max_new_tokens.value_or(size)) {
      result.finish_reason = FinishReason::kLength;
    }
  }
  return result;
}

}  // namespace packhorse::test
