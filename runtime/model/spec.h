// The spec: what a model is, in numbers and choices (docs/spec.md). Knows no model names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ops/args.h"

namespace packhorse {

enum class NormPlacement : uint8_t { kPost, kPre };
enum class PositionKind : uint8_t { kNone, kLearned };
enum class FeedForwardKind : uint8_t { kPlain, kGated };

/// Rotary position embedding of queries and keys; frequency j is
/// theta^(-2 j / dims) / factor, where none are given.
struct RopeSpec {
  std::vector<float> frequencies;  // [dims / 2], or empty
  float attention_factor = 1;      // of queries and of keys
  float theta = 0;
  float local_theta = 0;  // of layers with a window
  int64_t dims = 0;       // leading columns of a head that are rotated
  float factor = 1;
};

/// Labels of each sequence, read off the pooler head or off its pooled tokens, or of each token.
struct ClassifierSpec {
  enum class Input : uint8_t { kPooler, kCls, kMean, kLast, kTokens };
  Input input = Input::kCls;
  int64_t num_labels = 0;
  std::optional<Activation> dense;  // activation of a dense layer before, where there is one
  bool dense_bias = true;
  bool dense_norm = false;  // after the activation; of the model's kind
  bool bias = true;

  bool per_token() const { return input == Input::kTokens; }
};

/// Logits over the vocabulary: decoder(norm(activation(dense(x)))), the norm of the model's kind,
/// both as wide as the embedding tables.
struct MaskedLmSpec {
  Activation activation = Activation::kGelu;
  bool dense_bias = true;
  bool decoder_bias = true;
  bool sparse = false;        // whether the model is for sparse vectors
  bool sparse_sum = false;    // as SparsePoolArgs
  bool sparse_twice = false;  // likewise
};

/// One of several dense layers, each on what the one before gives.
struct DenseSpec {
  int64_t size = 0;
  bool bias = true;
  bool residual = false;  // adds its input, through a layer of its own where the sizes differ
  Activation activation = Activation::kNone;
};

/// A vector of each token.
struct VectorsSpec {
  std::vector<DenseSpec> layers;  // at least one
  bool normalize = true;

  int64_t size() const { return layers.back().size; }
};

struct Spec {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t embedding_size = 0;  // width of the embedding tables
  bool embedding_projection = false;
  int64_t num_layers = 0;
  std::vector<int32_t> layer_weights;  // [num_layers] which set of weights each layer runs with
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t intermediate_size = 0;
  int64_t type_vocab_size = 0;
  int64_t max_seqlen = 0;

  PositionKind position_kind = PositionKind::kLearned;
  int64_t num_positions = 0;  // that position ids may name, `position_offset` included
  int64_t position_offset = 0;

  NormKind norm_kind = NormKind::kLayer;
  NormPlacement norm_placement = NormPlacement::kPost;
  float norm_eps = 1e-12f;
  bool norm_bias = true;
  bool embedding_norm = true;
  bool first_attention_norm = true;  // pre-norm: whether the first layer's attention has its norm

  bool causal = false;
  int64_t window = 0;              // distance that local layers see
  std::vector<bool> local_layers;  // [num_layers] whether a layer has the window
  std::optional<RopeSpec> rope;
  ScoreTermKind score_term = ScoreTermKind::kNone;
  int64_t num_buckets = 0;  // disentangled: of each direction, 0 for one of each distance
  int64_t max_distance = 0;
  bool content_to_position = false;  // disentangled: which of its terms there are
  bool position_to_content = false;
  bool shared_projections = false;  // disentangled: positions go through the layers of the content
  bool relative_norm = false;       // disentangled: whether the table of positions has a norm
  bool qk_norm = false;
  bool qkv_bias = true;
  bool key_bias = true;  // and of what makes keys of positions
  bool attention_output_bias = true;

  int64_t convolution_width = 0;  // over what enters the first layer; 0: none
  Activation convolution_activation = Activation::kNone;

  FeedForwardKind feed_forward_kind = FeedForwardKind::kPlain;
  Activation activation = Activation::kGelu;
  bool up_bias = true;
  bool down_bias = true;

  std::optional<Activation> pooler;  // activation of the pooler head, where there is one
  std::optional<ClassifierSpec> classifier;
  std::optional<MaskedLmSpec> masked_lm;
  std::optional<VectorsSpec> vectors;
  bool token_weights = false;
  std::vector<Pooling> poolings = {Pooling::kCls};  // one beside the other
  std::vector<DenseSpec> embedding_dense;           // after pooling
  bool normalize = false;

  bool gated() const { return feed_forward_kind == FeedForwardKind::kGated; }
  bool pre_norm() const { return norm_placement == NormPlacement::kPre; }
  bool disentangled() const { return score_term == ScoreTermKind::kDisentangled; }
  int64_t num_weight_sets() const;
  /// Columns of the pooled embedding.
  int64_t embedding_columns() const {
    return embedding_dense.empty() ? pooled_columns() : embedding_dense.back().size;
  }
  /// Of all poolings together.
  int64_t pooled_columns() const { return hidden_size * static_cast<int64_t>(poolings.size()); }
  /// Rows of the table of relative positions.
  int64_t num_relative() const { return 2 * (num_buckets > 0 ? num_buckets : max_distance); }
};

/// Parses and validates the JSON text. Throws InvalidArgument naming the field, what was found and
/// what is known; unknown fields are refused.
Spec parse_spec(const std::string& json_text);

}  // namespace packhorse
