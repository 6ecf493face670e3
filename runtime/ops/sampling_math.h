// The arithmetic of sampling that both backends share. Probabilities are integers, so that their
// sums are exact: they do not depend on the order in which threads add them, and what a request
// draws depends on its logits and its seed alone.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "ops/args/sampling.h"

namespace packhorse {

/// A probability by the largest one, as an integer: at most 2^44, so that the sum over 2^19 tokens
/// fits 64 bits.
inline constexpr float kWeightUnit = 17592186044416.0f;  // 2^44

/// By what the distance of a logit to the largest one is multiplied, in float32, before exp makes
/// a probability of it. Where the inverse is no float32 number, the largest logits have all
/// probability.
constexpr float inverse_temperature(float temperature) {
  const double inverse = 1.0 / static_cast<double>(temperature);
  constexpr double kMost = std::numeric_limits<float>::max();
  return static_cast<float>(inverse < kMost ? inverse : kMost);
}
constexpr uint64_t weight_of(float probability) {
  return static_cast<uint64_t>(probability * kWeightUnit);
}

/// Larger logits have larger keys; NaN counts as -infinity.
constexpr uint32_t logit_key(float logit) {
  const float value = logit != logit ? -std::numeric_limits<float>::infinity() : logit + 0.0f;
  const auto bits = std::bit_cast<uint32_t>(value);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
constexpr float logit_of_key(uint32_t key) {
  return std::bit_cast<float>((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}
inline constexpr uint32_t kImpossibleKey = logit_key(-std::numeric_limits<float>::infinity());

/// A logit less the penalties of a token with this count.
constexpr float penalize(float logit, const SamplingRow& row, int32_t count) {
  if (count == 0) return logit;
  logit = logit > 0 ? logit / row.repetition_penalty : logit * row.repetition_penalty;
  const int32_t generated = count & ~CountTokensArgs::kSeen;
  if (generated == 0) return logit;
  return logit - row.presence_penalty - row.frequency_penalty * static_cast<float>(generated);
}

/// A logit l after penalties: 0 in a flat row, l + boost * |l| of a token with a boost.
constexpr float raise(float logit, int64_t token, const SamplingRow& row, const SampleArgs& args) {
  if (row.flat) return 0;
  for (int32_t i = row.bias_end; i < row.boost_end; ++i) {
    if (args.bias_tokens[i] != token) continue;
    const float size = logit < 0 ? -logit : logit;
    return size <= std::numeric_limits<float>::max() ? logit + size * args.biases[i] : logit;
  }
  return logit;
}

/// Philox4x32-10 (Salmon et al., SC 2011): 64 random bits that are a function of the key and of a
/// counter of two halves, so that a request needs no generator that remembers where it was.
constexpr uint64_t philox(uint64_t key, uint64_t low, uint64_t high) {
  uint32_t x[4] = {static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32),
                   static_cast<uint32_t>(high), static_cast<uint32_t>(high >> 32)};
  uint32_t k[2] = {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * x[0];
    const uint64_t b = uint64_t{0xCD9E8D57u} * x[2];
    const uint32_t next[4] = {
        static_cast<uint32_t>(b >> 32) ^ x[1] ^ k[0], static_cast<uint32_t>(b),
        static_cast<uint32_t>(a >> 32) ^ x[3] ^ k[1], static_cast<uint32_t>(a)};
    for (int i = 0; i < 4; ++i) x[i] = next[i];
    k[0] += 0x9E3779B9u;
    k[1] += 0xBB67AE85u;
  }
  return uint64_t{x[1]} << 32 | x[0];
}

constexpr uint64_t random_bits(const SamplingRow& row) {
  return philox(row.seed, row.draw, row.stream);
}

/// A number in [0, total), each as likely as `bits` are uniform: the upper half of their product.
constexpr uint64_t scale_random(uint64_t bits, uint64_t total) {
  const uint64_t low = (bits & 0xffffffffu) * (total & 0xffffffffu);
  const uint64_t middle_a = (bits >> 32) * (total & 0xffffffffu) + (low >> 32);
  const uint64_t middle_b = (bits & 0xffffffffu) * (total >> 32) + (middle_a & 0xffffffffu);
  return (bits >> 32) * (total >> 32) + (middle_a >> 32) + (middle_b >> 32);
}

/// The part of `total` to which the most likely tokens must sum.
constexpr uint64_t nucleus_of(uint64_t total, float top_p) {
  const double part = static_cast<double>(total) * static_cast<double>(top_p);
  auto target = static_cast<uint64_t>(part);
  if (static_cast<double>(target) < part) ++target;
  return target < 1 ? 1 : target > total ? total : target;
}

}  // namespace packhorse
