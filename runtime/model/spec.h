// The spec: what a model is, in numbers and choices (docs/spec.md). Knows no model names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ops/args.h"

namespace packhorse {

enum class NormPlacement : uint8_t { kPost };
enum class PositionKind : uint8_t { kLearned };
enum class FeedForwardKind : uint8_t { kPlain };

struct Spec {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t intermediate_size = 0;
  int64_t type_vocab_size = 0;
  int64_t max_seqlen = 0;

  PositionKind position_kind = PositionKind::kLearned;
  int64_t num_positions = 0;
  int64_t position_offset = 0;

  NormKind norm_kind = NormKind::kLayer;
  NormPlacement norm_placement = NormPlacement::kPost;
  float norm_eps = 1e-12f;

  AttentionMask mask;
  FeedForwardKind feed_forward_kind = FeedForwardKind::kPlain;
  Activation activation = Activation::kGelu;

  std::optional<Activation> pooler;  // activation of the pooler head, where there is one
  Pooling pooling = Pooling::kCls;
  bool normalize = false;
};

/// Parses and validates the JSON text. Throws InvalidArgument naming the field, what was found and
/// what is known; unknown fields are refused.
Spec parse_spec(const std::string& json_text);

}  // namespace packhorse
