// Chooses the algorithm that computes the attention of a layer. These are pure host functions, so
// that they can be tested without a GPU.
#pragma once

#include "core/format.h"
#include "cuda/attention/config.h"
#include "cuda/attention/limits.h"
#include "ops/args/attention.h"
#include "packhorse/attention_algorithm.h"
#include "packhorse/error.h"

namespace packhorse::cuda {

/// Returns up to which length sequences go to the two kernels of ByteTransformer's paper.
constexpr PortableLimits portable_limits(AttentionAlgorithm algorithm) {
  switch (algorithm) {
    case AttentionAlgorithm::kShort:
      return {.short_keys = kShortKeys};
    case AttentionAlgorithm::kGrouped:
      return {.grouped_keys = kGroupedKeys};
    case AttentionAlgorithm::kByteTransformer:
      return {.short_keys = kShortKeys, .grouped_keys = kGroupedKeys};
    default:
      return {};
  }
}

/// Returns the algorithm for a layer, never kAuto. `has_hopper` says whether build and device have
/// the Hopper kernels, `fits_hopper` is the result of attention_sm90_supported. Throws
/// InvalidArgument where `asked` is a certain algorithm that cannot compute this layer, whatever
/// the batch.
inline AttentionAlgorithm choose_algorithm(AttentionAlgorithm asked, bool has_hopper,
                                           bool fits_hopper, const ScoreTerm& term, int head_dim) {
  const bool disentangled = term.kind == ScoreTermKind::kDisentangled;
  const bool hopper =
      has_hopper && (disentangled ? head_dim <= kDisentangledSm90HeadDim : fits_hopper);
  const auto refuse = [&](const auto&... reason) {
    throw InvalidArgument(concat("attention: algorithm '", name_of(asked), "' ", reason...,
                                 "; expected ", hopper ? "'auto', 'hopper'" : "'auto'",
                                 " or 'online'"));
  };
  switch (asked) {
    case AttentionAlgorithm::kAuto:
      return hopper ? AttentionAlgorithm::kHopper : AttentionAlgorithm::kOnline;
    case AttentionAlgorithm::kOnline:
      return asked;
    case AttentionAlgorithm::kHopper:
      if (!has_hopper) refuse("needs a device of compute capability 9.0 and a build for it");
      if (!hopper && disentangled) {
        refuse("takes heads of at most ", kDisentangledSm90HeadDim,
               " columns with a disentangled term, found ", head_dim);
      }
      if (term.kind == ScoreTermKind::kGrid) refuse("computes no term of grids");
      if (!hopper) {
        refuse("does not take this term or these rows: ", term.num_buckets,
               " buckets up to a distance of ", term.max_distance);
      }
      return asked;
    case AttentionAlgorithm::kShort:
    case AttentionAlgorithm::kGrouped:
    case AttentionAlgorithm::kByteTransformer:
      if (disentangled) refuse("computes no disentangled term");
      if (head_dim > kGroupedHeadDim) {
        refuse("takes heads of at most ", kGroupedHeadDim, " columns, found ", head_dim);
      }
      return asked;
  }
  throw InvalidArgument("attention: unknown algorithm");
}

/// The Hopper kernels that a batch needs. A kernel that finds none of its sequences ends at once.
struct HopperKernels {
  bool tiles = true;
  bool warps = false;
};

/// Returns the kernels that a batch within these bounds may need, in a layer whose short sequences
/// the warps take if `warps_take`. `min_seqlen_q` is 0 where it is not known.
constexpr HopperKernels hopper_kernels(bool warps_take, int64_t min_seqlen_q, int64_t max_seqlen_q,
                                       int64_t max_seqlen_k) {
  if (!warps_take) return {};
  return {.tiles = max_seqlen_q > kWarpTokens || max_seqlen_k > kWarpTokens,
          .warps = min_seqlen_q <= kWarpTokens};
}

/// Describes which kernels run and what decided on them, for example "hopper (head tile 64,
/// ping-pong)".
inline std::string explain_algorithm(AttentionAlgorithm algorithm, bool disentangled,
                                     const AttentionConfig& config, int64_t max_seqlen_k,
                                     const HopperKernels& hopper = {}) {
  const std::string name = name_of(algorithm);
  if (disentangled) return name + " (disentangled term)";
  if (algorithm == AttentionAlgorithm::kHopper) {
    return concat(name, " (", hopper.tiles ? describe(config) : "",
                  hopper.tiles && hopper.warps ? ", " : "",
                  hopper.warps ? concat("warps up to ", kWarpTokens, " tokens") : "", ")");
  }
  const PortableLimits limits = portable_limits(algorithm);
  std::string parts;
  int32_t covered = -1;
  const auto add = [&](const char* kernel, int32_t longest) {
    if (longest < 0 || covered >= max_seqlen_k) return;
    parts += concat(parts.empty() ? "" : ", ", kernel, " up to ", longest, " keys");
    covered = longest;
  };
  add("whole score rows on chip", limits.short_keys);
  add("grouped GEMMs", limits.grouped_keys);
  if (covered < max_seqlen_k) parts += concat(parts.empty() ? "" : ", ", "online softmax");
  return concat(name, " (", parts, ")");
}

}  // namespace packhorse::cuda
