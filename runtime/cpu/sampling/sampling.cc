#include "cpu/sampling/sampling.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <span>

#include "core/math.h"
#include "cpu/common/workspace.h"
#include "ops/sampling_math.h"

namespace packhorse::cpu {
namespace {

struct Scratch {
  Scratch(Workspace& workspace, int64_t vocab_size, int64_t num_biases, int threads)
      : vocab_size(vocab_size),
        weights(workspace.take<uint64_t>(threads * vocab_size)),
        keys(workspace.take<uint32_t>(threads * vocab_size)),
        maxima(workspace.take<float>(threads * ceil_div(vocab_size, kMaximaBlock))),
        unbiased(workspace.take<float>(num_biases)) {}

  int64_t vocab_size;
  uint64_t* weights;  // [threads, vocab_size]
  uint32_t* keys;     // [threads, vocab_size]
  float* maxima;      // [threads, ceil(vocab_size / kMaximaBlock)]
  float* unbiased;    // [num_biases] logits before a bias was added
};

// The most tokens that are kept sorted, by top_k and by top_p, instead of selected by their keys.
constexpr int32_t kFew = 128;
constexpr size_t kMostSorted = 2048;

// The tokens with a larger key, and those with this key up to a token: what a selection has kept.
struct Selected {
  uint32_t key = 0;
  int64_t last = INT64_MAX;  // token
  bool contains(uint32_t of_key, int64_t token) const {
    return of_key > key || (of_key == key && token <= last);
  }
};

// The fewest tokens, those with the largest keys first and of equal ones the lower, whose weights
// sum to `target` or more. Their weights sum to that much. `weight(token)` is the same for tokens
// with the same key, and 0 for tokens that must not be chosen.
template <class Weight>
Selected select(std::span<const uint32_t> keys, uint64_t target, Weight weight) {
  Selected selected;
  uint64_t needed = target;
  // The key of the last token is found digit by digit, as in a radix sort, from the highest on.
  for (int shift = 24; shift >= 0; shift -= 8) {
    std::array<uint64_t, 256> sums = {};
    const uint32_t above = shift == 24 ? 0 : ~uint32_t{0} << (shift + 8);
    for (size_t token = 0; token < keys.size(); ++token) {
      if ((keys[token] & above) != selected.key) continue;
      sums[keys[token] >> shift & 0xff] += weight(static_cast<int64_t>(token));
    }
    uint32_t digit = 255;
    while (digit > 0 && sums[digit] < needed) needed -= sums[digit--];
    selected.key |= digit << shift;
  }
  for (size_t token = 0; token < keys.size(); ++token) {
    if (keys[token] != selected.key) continue;
    const uint64_t its = weight(static_cast<int64_t>(token));
    if (its == 0) continue;
    selected.last = static_cast<int64_t>(token);
    if (its >= needed) break;
    needed -= its;
  }
  return selected;
}

// Writes the `count` tokens with the largest keys, the largest first and of equal ones the lower,
// with these keys. `largest_of(block)` is no less than the keys of the tokens of this block, so
// that few blocks are looked at token by token.
template <class KeyOf, class LargestOf>
void write_largest(size_t size, size_t count, KeyOf key_of, LargestOf largest_of, int32_t* tokens,
                   uint32_t* keys) {
  constexpr auto kBlock = static_cast<size_t>(kMaximaBlock);
  size_t found = 0;
  for (size_t block = 0; block * kBlock < size; ++block) {
    const size_t begin = block * kBlock;
    const size_t end = std::min(begin + kBlock, size);
    if (found == count && largest_of(block) <= keys[count - 1]) continue;
    for (size_t token = begin; token < end; ++token) {
      const uint32_t key = key_of(token);
      if (found == count && key <= keys[count - 1]) continue;
      size_t place = found < count ? found++ : count - 1;
      for (; place > 0 && keys[place - 1] < key; --place) {
        keys[place] = keys[place - 1];
        tokens[place] = tokens[place - 1];
      }
      keys[place] = key;
      tokens[place] = static_cast<int32_t>(token);
    }
  }
}

// A row of logits.
class Row {
 public:
  Row(const SampleArgs& args, int64_t index, const Scratch& scratch, int worker,
      const Kernels& kernels)
      : args_(args),
        kernels_(kernels),
        row_(args.rows[index]),
        index_(index),
        logits_(args.logits.as<float>() + index * args.logits.row_stride,
                static_cast<size_t>(args.logits.columns())),
        weights_(scratch.weights + worker * scratch.vocab_size, logits_.size()),
        keys_(scratch.keys + worker * scratch.vocab_size, logits_.size()),
        maxima_(scratch.maxima + worker * ceil_div(scratch.vocab_size, kMaximaBlock),
                static_cast<size_t>(ceil_div(scratch.vocab_size, kMaximaBlock))),
        unbiased_(scratch.unbiased) {}

  void run() {
    if (row_.filtered || row_.timestamps >= 0) filter();
    if (row_.of_beam) return write_beam();
    const bool logprobs = args_.wants_logprobs || args_.num_top > 0;
    const double normalizer = logprobs ? log_sum() : 0;
    if (args_.num_top > 0) {
      const auto same = [](float logit) { return logit; };
      write_top_logits(normalizer, same);
    }
    add_biases();
    const int32_t token = row_.forced >= 0 ? row_.forced : choose();
    args_.tokens[index_] = token;
    if (!args_.wants_logprobs) return;
    args_.logprobs[index_] = token < 0 ? 0 : static_cast<float>(unbiased(token) - normalizer);
  }

 private:
  // Leaves in the logits what the settings make of them, -infinity of tokens that may not come.
  void filter() {
    add_biases();
    fill_keys();
    for (size_t token = 0; token < logits_.size(); ++token) {
      logits_[token] = keys_[token] <= kImpossibleKey ? -INFINITY : logit_of_key(keys_[token]);
    }
    filtered_ = true;
    if (row_.timestamps < 0) return;
    const auto begin = static_cast<size_t>(row_.timestamps);
    const std::span<float> texts = logits_.first(begin);
    const std::span<const float> times = logits_.subspan(begin);
    const auto largest = [](std::span<const float> of) {
      return of.empty() ? -INFINITY : *std::ranges::max_element(of);
    };
    const float best_text = largest(texts);
    const float best_time = largest(times);
    if (std::isinf(best_time)) return;
    const double together =
        best_time + std::log(kernels_.sum_of_exp(times.data(), std::ssize(times), best_time));
    if (together > best_text) std::ranges::fill(texts, -INFINITY);
  }

  // log of the sum of exp over all logits. Fills maxima_.
  double log_sum() const {
    const auto count = static_cast<int64_t>(logits_.size());
    kernels_.block_maxima(logits_.data(), count, maxima_.data());
    const float largest = *std::ranges::max_element(maxima_);
    if (largest == -INFINITY) return 0;
    return largest + std::log(kernels_.sum_of_exp(logits_.data(), count, largest));
  }

  void write_beam() {
    const double normalizer = log_sum();
    const auto logprob = [&](float logit) { return static_cast<float>(logit - normalizer); };
    const bool biased = row_.bias_end > row_.bias_begin;
    if (filtered_ || (!biased && row_.counts < 0 && row_.mask < 0 && !raises())) {
      write_top_logits(0, logprob);
    } else {
      for (float& logit : logits_) logit = logprob(logit);
      add_biases();
      fill_keys();
      write_top_keys();
    }
    args_.tokens[index_] = -1;
    if (args_.wants_logprobs) args_.logprobs[index_] = 0;
  }

  void add_biases() {
    if (filtered_) return;
    for (int32_t i = row_.bias_begin; i < row_.bias_end; ++i) {
      float& logit = logits_[static_cast<size_t>(args_.bias_tokens[i])];
      unbiased_[i] = logit;
      logit += args_.biases[i];
    }
  }

  // The most likely tokens by `of`, which never falls, of their logits. Reads maxima_.
  template <class Of>
  void write_top_logits(double normalizer, Of of) const {
    write_top(
        normalizer, [&](size_t token) { return logit_key(of(logits_[token])); },
        [&](size_t block) { return logit_key(of(maxima_[block])); });
  }

  // The most likely tokens by keys_.
  void write_top_keys() const {
    write_top(
        0, [&](size_t token) { return keys_[token]; },
        [&](size_t block) {
          const size_t first = block * static_cast<size_t>(kMaximaBlock);
          const size_t size = std::min(static_cast<size_t>(kMaximaBlock), keys_.size() - first);
          return *std::ranges::max_element(keys_.subspan(first, size));
        });
  }

  template <class KeyOf, class LargestOf>
  void write_top(double normalizer, KeyOf key_of, LargestOf largest_of) const {
    if (args_.num_top == 0) return;
    const auto most = static_cast<size_t>(args_.num_top);
    const size_t count = std::min(most, logits_.size());
    int32_t* const tokens = args_.top_tokens + index_ * args_.num_top;
    float* const logprobs = args_.top_logprobs + index_ * args_.num_top;
    auto* const keys = reinterpret_cast<uint32_t*>(weights_.data());  // not in use yet
    write_largest(logits_.size(), count, key_of, largest_of, tokens, keys);
    for (size_t i = 0; i < count; ++i) {
      logprobs[i] = static_cast<float>(logit_of_key(keys[i]) - normalizer);
    }
    std::fill(tokens + count, tokens + most, -1);
    std::fill(logprobs + count, logprobs + most, -INFINITY);
  }

  double unbiased(int32_t token) const {
    if (filtered_) return logits_[static_cast<size_t>(token)];
    for (int32_t i = row_.bias_begin; i < row_.bias_end; ++i) {
      if (args_.bias_tokens[i] == token) return unbiased_[i];
    }
    return logits_[static_cast<size_t>(token)];
  }

  bool raises() const { return !filtered_ && (row_.flat || row_.boost_end > row_.bias_end); }

  bool allowed(size_t token) const {
    if (row_.mask < 0 || filtered_) return true;
    const size_t words = ceil_div(logits_.size(), 32);
    const uint32_t* mask = args_.masks + static_cast<size_t>(row_.mask) * words;
    return (mask[token / 32] >> token % 32 & 1) != 0;
  }

  // Fills keys_; returns the first token with the largest.
  size_t fill_keys() {
    const int32_t* counts =
        row_.counts < 0 || filtered_
            ? nullptr
            : args_.counts.as<int32_t>() + row_.counts * args_.counts.row_stride;
    size_t best = 0;
    for (size_t token = 0; token < logits_.size(); ++token) {
      float logit =
          counts == nullptr ? logits_[token] : penalize(logits_[token], row_, counts[token]);
      if (raises()) logit = raise(logit, static_cast<int64_t>(token), row_, args_);
      keys_[token] = allowed(token) ? logit_key(logit) : kImpossibleKey;
      if (keys_[token] > keys_[best]) best = token;
    }
    return best;
  }

  // The first token with the largest key, where every token may come as it is.
  size_t most_likely() const {
    kernels_.block_maxima(logits_.data(), static_cast<int64_t>(logits_.size()), maxima_.data());
    const auto block = std::ranges::max_element(maxima_);
    const uint32_t largest = logit_key(*block);
    auto token = static_cast<size_t>((block - maxima_.begin()) * kMaximaBlock);
    while (logit_key(logits_[token]) != largest) ++token;
    return token;
  }

  int32_t choose() {
    const bool as_it_is = (filtered_ || (row_.counts < 0 && row_.mask < 0)) && !raises();
    const size_t best = as_it_is ? most_likely() : fill_keys();
    const uint32_t key = as_it_is ? logit_key(logits_[best]) : keys_[best];
    if (key <= kImpossibleKey) return -1;
    const float largest = logit_of_key(key);
    if (row_.temperature == 0 || std::isinf(largest)) return static_cast<int32_t>(best);
    const bool some = row_.top_k > 0 && static_cast<size_t>(row_.top_k) < keys_.size();
    if (as_it_is && some && row_.top_k <= kFew) return choose_of_few(largest);
    Selected kept;
    if (some) {
      if (as_it_is) std::ranges::transform(logits_, keys_.begin(), logit_key);
      kept = select(keys_, static_cast<uint64_t>(row_.top_k), [](int64_t) { return uint64_t{1}; });
    }
    uint64_t total = fill_weights(largest, as_it_is);
    if (some) total = keep(kept, 0);
    if (row_.top_p < 1) total = keep_nucleus(total, as_it_is);
    if (row_.min_p > 0) total = keep({}, smallest_weight());
    uint64_t left = scale_random(random_bits(row_), total);
    size_t token = 0;
    while (weights_[token] <= left) left -= weights_[token++];
    return static_cast<int32_t>(token);
  }

  // Chooses among the top_k tokens, few of them, where every token may come as it is. Reads
  // maxima_.
  int32_t choose_of_few(float largest) {
    struct Candidate {
      int32_t token;
      uint64_t weight;
    };
    std::array<Candidate, kFew> candidates;
    std::array<float, kFew> weights;
    std::array<uint32_t, kFew> keys;
    std::array<int32_t, kFew> tokens;
    auto count = static_cast<size_t>(row_.top_k);
    write_largest(
        logits_.size(), count, [&](size_t token) { return logit_key(logits_[token]); },
        [&](size_t block) { return logit_key(maxima_[block]); }, tokens.data(), keys.data());
    std::ranges::transform(std::span(keys).first(count), weights.begin(), logit_of_key);
    kernels_.exp_of_distances(weights.data(), row_.top_k, largest,
                              inverse_temperature(row_.temperature), weights.data());
    uint64_t total = 0;
    for (size_t i = 0; i < count; ++i) {
      candidates[i] = {tokens[i], weight_of(weights[i])};
      total += candidates[i].weight;
    }
    if (row_.top_p < 1) {
      const uint64_t target = nucleus_of(total, row_.top_p);
      total = 0;
      size_t end = 0;
      while (total < target) total += candidates[end++].weight;
      count = end;
    }
    const uint64_t smallest = row_.min_p > 0 ? smallest_weight() : 0;
    while (count > 1 && candidates[count - 1].weight < smallest) {
      total -= candidates[--count].weight;
    }
    // Where the tokens are in order, a random number means the same token however it was found.
    std::sort(candidates.begin(), candidates.begin() + static_cast<ptrdiff_t>(count),
              [](const Candidate& a, const Candidate& b) { return a.token < b.token; });
    uint64_t left = scale_random(random_bits(row_), total);
    size_t i = 0;
    while (candidates[i].weight <= left) left -= candidates[i++].weight;
    return candidates[i].token;
  }

  // Leaves the weights of the most likely tokens that sum to top_p of `total`. Returns their sum.
  // Changes keys_, which `by_logits` says are of no use.
  uint64_t keep_nucleus(uint64_t total, bool by_logits) {
    const uint64_t target = nucleus_of(total, row_.top_p);
    if (by_logits) {
      // Tokens of so little weight are not needed: all others have the target without them.
      const uint64_t little = (total - target) / weights_.size();
      size_t count = 0;
      for (size_t token = 0; token < weights_.size(); ++token) {
        keys_[std::min(count, kMostSorted)] = static_cast<uint32_t>(token);
        count += weights_[token] > little ? 1 : 0;
      }
      if (count <= kMostSorted) return keep_nucleus_of(keys_.first(count), target, little);
      std::ranges::transform(logits_, keys_.begin(), logit_key);
    }
    const auto weight = [&](int64_t token) { return weights_[static_cast<size_t>(token)]; };
    return keep(select(keys_, target, weight), 0);
  }

  uint64_t keep_nucleus_of(std::span<uint32_t> tokens, uint64_t target, uint64_t little) {
    std::ranges::sort(tokens, [&](uint32_t a, uint32_t b) {
      return logits_[a] > logits_[b] || (logits_[a] == logits_[b] && a < b);
    });
    uint64_t total = 0;
    size_t end = 0;
    while (total < target) total += weights_[tokens[end++]];
    for (uint64_t& weight : weights_) weight = weight > little ? weight : 0;
    for (const uint32_t token : tokens.subspan(end)) weights_[token] = 0;
    return total;
  }

  // The least weight by min_p.
  uint64_t smallest_weight() const {
    return static_cast<uint64_t>(static_cast<double>(row_.min_p) *
                                 static_cast<double>(kWeightUnit));
  }

  // Fills weights_ by the logits, or by keys_ where the logits are not what the settings make of
  // them. Returns the sum.
  uint64_t fill_weights(float largest, bool by_logits) {
    const float inverse = inverse_temperature(row_.temperature);
    std::array<float, kMaximaBlock> block;
    uint64_t total = 0;
    for (size_t begin = 0; begin < logits_.size(); begin += block.size()) {
      const size_t count = std::min(block.size(), logits_.size() - begin);
      const float* from = &logits_[begin];
      if (!by_logits) {
        std::ranges::transform(keys_.subspan(begin, count), block.begin(), logit_of_key);
        from = block.data();
      }
      kernels_.exp_of_distances(from, static_cast<int64_t>(count), largest, inverse, block.data());
      for (size_t i = 0; i < count; ++i) total += weights_[begin + i] = weight_of(block[i]);
    }
    return total;
  }

  // Leaves the weights of the tokens that are kept and have `smallest` or more. Returns their sum.
  uint64_t keep(Selected kept, uint64_t smallest) {
    const bool all = kept.key == 0;
    uint64_t total = 0;
    for (size_t token = 0; token < weights_.size(); ++token) {
      uint64_t& weight = weights_[token];
      const bool stays = all || kept.contains(keys_[token], static_cast<int64_t>(token));
      if (!stays || weight < smallest) weight = 0;
      total += weight;
    }
    return total;
  }

  const SampleArgs& args_;
  const Kernels& kernels_;
  const SamplingRow& row_;
  const int64_t index_;
  const std::span<float> logits_;
  const std::span<uint64_t> weights_;
  const std::span<uint32_t> keys_;
  const std::span<float> maxima_;  // largest logit of each block
  float* const unbiased_;
  bool filtered_ = false;  // the logits are what the settings have made of them
};

}  // namespace

size_t sample_workspace(int64_t vocab_size, int64_t num_biases, int threads) {
  Workspace workspace;
  Scratch(workspace, vocab_size, num_biases, threads);
  return workspace.bytes();
}

void sample(const SampleArgs& args, const Kernels& kernels, ThreadPool& pool) {
  Workspace workspace(args.workspace);
  const Scratch scratch(workspace, args.logits.columns(), args.num_biases, pool.threads());
  pool.parallel_for(args.logits.rows(), [&](int64_t index, int worker) {
    Row(args, index, scratch, worker, kernels).run();
  });
}

void count_tokens(const CountTokensArgs& args) {
  const auto row = [&](int32_t slot) {
    return args.counts.as<int32_t>() + slot * args.counts.row_stride;
  };
  for (int64_t i = 0; i < args.num_clear; ++i) {
    std::fill_n(row(args.clear[i]), args.counts.columns(), 0);
  }
  for (int64_t i = 0; i < args.num_tokens; ++i) {
    if (args.slots[i] < 0) continue;
    int32_t& count = row(args.slots[i])[args.ids[i]];
    count = args.of_prompt ? count | CountTokensArgs::kSeen : count + 1;
  }
}

void begin_step(const BeginStepArgs& args) {
  for (int64_t b = 0; b < args.batch.num_sequences; ++b) {
    std::copy(args.pages + args.page_begins[b], args.pages + args.page_begins[b + 1],
              args.table + b * args.table_stride);
    int32_t& id = args.ids[args.batch.cu_seqlens[b + 1] - 1];
    if (args.sources[b] >= 0) id = std::max(args.tokens[args.sources[b]], 0);
    const int32_t slot = args.count_slots[b];
    if (slot >= 0) ++args.counts.as<int32_t>()[slot * args.counts.row_stride + id];
  }
}

}  // namespace packhorse::cpu
