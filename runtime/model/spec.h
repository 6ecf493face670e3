// The spec: what a model is, in numbers and choices (docs/spec.md): its stem, its stack of layers
// and its heads. Knows no model names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ops/args.h"

namespace packhorse {

enum class NormPlacement : uint8_t { kPost, kPre };
enum class PositionKind : uint8_t { kNone, kLearned };

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

/// The pooled embedding of a sequence.
struct EmbeddingSpec {
  std::vector<Pooling> poolings = {Pooling::kCls};  // one beside the other
  std::vector<DenseSpec> dense;                     // after pooling
  bool normalize = false;
};

/// What enters the first layer: rows of tables, one for each token.
struct StemSpec {
  int64_t vocab_size = 0;
  int64_t embedding_size = 0;  // width of the tables
  bool projection = false;     // from that width to the hidden size
  int64_t type_vocab_size = 0;
  PositionKind position_kind = PositionKind::kLearned;
  int64_t num_positions = 0;  // that position ids may name, `position_offset` included
  int64_t position_offset = 0;
  bool norm = true;
};

/// The term that attention adds to its scores.
struct ScoreTermSpec {
  ScoreTermKind kind = ScoreTermKind::kNone;
  int64_t num_buckets = 0;  // disentangled: of each direction, 0 for one of each distance
  int64_t max_distance = 0;
  bool content_to_position = false;  // disentangled: which of its terms there are
  bool position_to_content = false;
  bool shared_projections = false;  // disentangled: positions go through the layers of the content
  bool norm = false;                // disentangled: whether the table of positions has a norm

  /// Rows of the table of relative positions.
  int64_t num_relative() const { return 2 * (num_buckets > 0 ? num_buckets : max_distance); }
};

struct AttentionSpec {
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  bool causal = false;
  int64_t window = 0;  // distance that local layers see
  std::optional<RopeSpec> rope;
  ScoreTermSpec score_term;
  bool qk_norm = false;
  bool qkv_bias = true;
  bool key_bias = true;  // and of what makes keys of positions
  bool output_bias = true;

  bool disentangled() const { return score_term.kind == ScoreTermKind::kDisentangled; }
  /// Whether layers with a window rotate by frequencies of their own.
  bool has_local_theta() const { return rope && rope->local_theta != rope->theta; }
};

struct FeedForwardSpec {
  bool gated = false;
  int64_t size = 0;  // of what lies between its two layers
  Activation activation = Activation::kGelu;
  bool up_bias = true;
  bool down_bias = true;
};

/// A convolution over what enters the first layer.
struct ConvolutionSpec {
  int64_t width = 0;  // 0: none
  Activation activation = Activation::kNone;
};

/// The layers.
struct StackSpec {
  int64_t num_layers = 0;
  std::vector<int32_t> layer_weights;  // [num_layers] which set of weights each layer runs with
  std::vector<bool> local_layers;      // [num_layers] whether a layer has the window
  NormPlacement norm_placement = NormPlacement::kPost;
  bool first_attention_norm = true;  // pre-norm: whether the first layer's attention has its norm
  AttentionSpec attention;
  FeedForwardSpec feed_forward;
  ConvolutionSpec convolution;

  bool pre_norm() const { return norm_placement == NormPlacement::kPre; }
  int64_t num_weight_sets() const;
};

/// What is made of the last hidden state.
struct HeadsSpec {
  EmbeddingSpec embedding;
  std::optional<Activation> pooler;  // activation of the pooler head, where there is one
  std::optional<ClassifierSpec> classifier;
  std::optional<MaskedLmSpec> masked_lm;
  std::optional<VectorsSpec> vectors;
  bool token_weights = false;
};

/// Of all norms of a model, but those of the heads of queries and keys.
struct NormSpec {
  NormKind kind = NormKind::kLayer;
  float eps = 1e-12f;
  bool bias = true;
};

struct Spec {
  int64_t hidden_size = 0;
  int64_t max_seqlen = 0;
  NormSpec norm;
  StemSpec stem;
  StackSpec stack;
  HeadsSpec heads;

  /// Columns of all poolings together.
  int64_t pooled_columns() const {
    return hidden_size * static_cast<int64_t>(heads.embedding.poolings.size());
  }
  /// Columns of the embedding.
  int64_t embedding_columns() const {
    const std::vector<DenseSpec>& dense = heads.embedding.dense;
    return dense.empty() ? pooled_columns() : dense.back().size;
  }
  /// Whether position ids mean anything to the model: some know distances alone.
  bool takes_positions() const {
    return stem.position_kind != PositionKind::kNone || stack.attention.rope.has_value();
  }
};

/// Parses and validates the JSON text. Throws InvalidArgument naming the field, what was found and
/// what is known; unknown fields are refused.
Spec parse_spec(const std::string& json_text);

}  // namespace packhorse
