// Tokens that are chosen after the settings have filtered the logits, against float64: bias,
// penalty, mask, and tokens of time that together are more likely than any other; and lists of the
// most likely tokens, among them equal ones.
#include "cuda/sampling/sampling.h"

#include "emulated_stream.h"
#include "emulated_test.h"

namespace packhorse::cuda {
namespace {

using namespace packhorse::emulated_test;

constexpr int kTop = 4;

struct Case {
  int vocab_size;
  int timestamps;  // first token of time, or -1
  double raised;   // is added to logits of times
  bool masks_times = false;
};

// A row of logits, its settings, and what is written of it. T: what the logits are given as.
template <class T>
struct Chosen {
  /// `padded`: the row ends at a multiple of eight, and so is read in vectors.
  Chosen(size_t vocab_size, size_t num_top, bool padded)
      : vocab_size(vocab_size),
        logits(padded ? (vocab_size + 7) / 8 * 8 : vocab_size),
        source(logits.size()),
        rows(1),
        tokens(1),
        top(num_top),
        logprobs(1),
        top_logprobs(num_top) {}

  /// Rounds the logits to T; those past the last token are larger than all others.
  void round() {
    for (size_t i = vocab_size; i < logits.size(); ++i) logits[i] = 1e4F;
    for (size_t i = 0; i < logits.size(); ++i) {
      source[i] = rounded<T>(static_cast<double>(logits[i]));
      logits[i] = static_cast<float>(to_double(source[i]));
    }
  }

  /// Where the logits are given as 16-bit numbers, `logits` has none of them from here on.
  SampleArgs args() {
    SampleArgs args;
    const auto columns = static_cast<int64_t>(vocab_size),
               stride = static_cast<int64_t>(logits.size());
    args.logits = {logits.data(), DType::kFloat32, 1, columns, stride};
    if constexpr (!std::is_same_v<T, float>) {
      args.source = {source.data(), kDType<T>, 1, columns, stride};
      logits.fill_bytes(0xff);
    }
    args.rows = rows.data();
    args.wants_logprobs = true;
    args.num_top = static_cast<int32_t>(top.size());
    args.tokens = tokens.data();
    args.logprobs = logprobs.data();
    args.top_tokens = top.data();
    args.top_logprobs = top_logprobs.data();
    return args;
  }

  size_t vocab_size;
  Array<float> logits;
  Array<T> source;
  Array<SamplingRow> rows;
  Array<int32_t> tokens, top;
  Array<float> logprobs, top_logprobs;
};

// The tokens, the largest number first, and of equal ones the lower.
template <class Number>
std::vector<int32_t> in_order(const std::vector<Number>& numbers) {
  std::vector<int32_t> order(numbers.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return numbers[static_cast<size_t>(a)] > numbers[static_cast<size_t>(b)];
  });
  return order;
}

// Logits as the settings leave them.
std::vector<double> filtered(const Array<float>& logits, const Array<uint32_t>& mask,
                             const Array<int32_t>& bias_tokens, const Array<float>& biases,
                             const SamplingRow& row, const Array<int32_t>& counts) {
  std::vector<double> left(logits.data(), logits.data() + logits.size());
  for (size_t i = 0; i < biases.size(); ++i) {
    left[static_cast<size_t>(bias_tokens[i])] += static_cast<double>(biases[i]);
  }
  for (size_t token = 0; token < left.size(); ++token) {
    double& one = left[token];
    if (counts[token] != 0) {
      const double penalty = row.repetition_penalty;
      one = one > 0 ? one / penalty : one * penalty;
    }
    if ((mask[token / 32] >> token % 32 & 1) == 0) one = -INFINITY;
  }
  if (row.timestamps < 0) return left;
  const auto begin = left.begin() + row.timestamps;
  const double text = *std::max_element(left.begin(), begin);
  double sum = 0;
  for (auto time = begin; time != left.end(); ++time) sum += std::exp(*time);
  if (sum > 0 && std::log(sum) > text) std::fill(left.begin(), begin, -INFINITY);
  return left;
}

template <class T>
void check(const Case& of, bool beam, bool padded, unsigned seed) {
  emulated::set_seed(seed);
  std::mt19937 random(seed);
  const auto size = static_cast<size_t>(of.vocab_size);
  Chosen<T> chosen(size, kTop, padded);
  Array<float>& logits = chosen.logits;
  Array<float> given(size), biases(2), workspace(2);
  fill_normal(logits, random, 2);
  const auto begin = static_cast<size_t>(of.timestamps < 0 ? of.vocab_size : of.timestamps);
  for (size_t i = begin; i < size; ++i) logits[i] += static_cast<float>(of.raised);
  chosen.round();
  std::memcpy(given.data(), logits.data(), size * sizeof(float));
  Array<uint32_t> mask((size + 31) / 32);
  for (size_t i = 0; i < mask.size(); ++i) mask[i] = static_cast<uint32_t>(random());
  for (size_t i = begin; i < size && of.masks_times; ++i) mask[i / 32] &= ~(1u << i % 32);
  Array<int32_t> counts(size), bias_tokens(std::vector<int32_t>{1, of.vocab_size - 1});
  for (size_t i = 0; i < size; ++i) counts[i] = i % 5 == 0 ? CountTokensArgs::kSeen : 0;
  biases[0] = 3;
  biases[1] = -0.5F;
  SamplingRow& row = chosen.rows[0];
  row = SamplingRow{.repetition_penalty = 1.5F,
                    .counts = 0,
                    .mask = 0,
                    .bias_end = 2,
                    .boost_end = 2,
                    .of_beam = beam,
                    .filtered = true,
                    .timestamps = of.timestamps};
  SampleArgs args = chosen.args();
  args.bias_tokens = bias_tokens.data();
  args.biases = biases.data();
  args.num_biases = 2;
  args.masks = mask.data();
  args.counts = {counts.data(), DType::kInt32, 1, of.vocab_size};
  args.workspace = workspace.data();
  launch_sample(args, emulated_stream(1));

  std::vector<double> left = filtered(given, mask, bias_tokens, biases, row, counts);
  double sum = 0;
  for (const double one : left) sum += std::exp(one);
  for (double& one : left) one -= std::log(sum);
  const std::vector<int32_t> order = in_order(left);
  for (size_t i = 0; i < kTop; ++i) {
    const double expected = left[static_cast<size_t>(order[i])];
    if (std::isinf(expected)) {
      CHECK(static_cast<double>(chosen.top_logprobs[i]) == expected);
      continue;
    }
    CHECK(chosen.top[i] == order[i]);
    CHECK_WITHIN(std::abs(static_cast<double>(chosen.top_logprobs[i]) - expected), 2e-5);
  }
  CHECK(chosen.tokens[0] == (beam ? -1 : order[0]));
  if (beam) return;
  const double expected = left[static_cast<size_t>(order[0])];
  CHECK_WITHIN(std::abs(static_cast<double>(chosen.logprobs[0]) - expected), 2e-5);
}

// Logits of this size are equal once their normalizer is subtracted.
constexpr float kTiny = 1e-9F;

// `step`: logits are its multiples, so that more of them are equal the larger it is. Steps below
// kTiny are of tiny logits.
template <class T>
void check_most_likely(int vocab_size, int count, float step, bool beam, bool padded) {
  emulated::set_seed(7);
  std::mt19937 random(7);
  const auto size = static_cast<size_t>(vocab_size);
  const auto num_top = static_cast<size_t>(count);
  Chosen<T> chosen(size, num_top, padded);
  Array<float>& logits = chosen.logits;
  fill_normal(logits, random, step < kTiny ? kTiny : 3);
  for (size_t i = 0; i < size; ++i) logits[i] = std::round(logits[i] / step) * step;
  chosen.round();
  double sum = 0;
  for (size_t i = 0; i < size; ++i) {
    sum += std::exp(static_cast<double>(logits[i]));
  }
  const std::vector<float> given(logits.data(), logits.data() + size);
  chosen.rows[0] = SamplingRow{.of_beam = beam};
  launch_sample(chosen.args(), emulated_stream(1));

  // Beams are offered tokens by their log-probabilities, in float32.
  std::vector<float> compared = given;
  for (float& logit : compared) logit -= beam ? static_cast<float>(std::log(sum)) : 0;
  const std::vector<int32_t> order = in_order(compared);
  for (size_t i = 0; i < num_top; ++i) {
    if (i >= size) {
      CHECK(chosen.top[i] == -1);
      continue;
    }
    CHECK(chosen.top[i] == order[i]);
    const double expected = static_cast<double>(given[static_cast<size_t>(order[i])]);
    CHECK_WITHIN(std::abs(static_cast<double>(chosen.top_logprobs[i]) - expected + std::log(sum)),
                 2e-5);
  }
}

}  // namespace

TEST(most_likely_tokens) {
  for (const bool beam : {false, true}) {
    // The last leaves zeros: all are candidates.
    for (const float step : {1e-11F, 1e-3F, 0.5F, 100.0F}) {
      for (const int count : {1, 8, 32, 33, 128}) {
        for (const int vocab_size : {1, 40, 318, 9001}) {
          for (const bool padded : {false, true}) {
            check_most_likely<float>(vocab_size, count, step, beam, padded);
            check_most_likely<__half>(vocab_size, count, step, beam, padded);
          }
        }
      }
    }
  }
}

template <class T>
void check_filters(bool beam, bool padded) {
  for (unsigned seed = 0; seed < 3; ++seed) {
    for (const double raised : {0, -9, 9}) {
      check<T>({.vocab_size = 318, .timestamps = 267, .raised = raised}, beam, padded, seed);
    }
    check<T>({.vocab_size = 318, .timestamps = -1, .raised = 0}, beam, padded, seed);
    check<T>({.vocab_size = 318, .timestamps = 267, .raised = 0, .masks_times = true}, beam, padded,
             seed);
  }
  check<T>({.vocab_size = 9001, .timestamps = 7500, .raised = -1}, beam, padded, 5);
}

TEST(filtered_logits) {
  for (const bool beam : {false, true}) {
    for (const bool padded : {false, true}) {
      check_filters<float>(beam, padded);
      check_filters<__nv_bfloat16>(beam, padded);
    }
  }
}

}  // namespace packhorse::cuda
