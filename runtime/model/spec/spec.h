// The spec describes a model by numbers and choices (docs/spec.md): its stem, its stack of layers
// and its heads. It contains no model names.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ops/args.h"

namespace packhorse {

/// kPost: x = norm(x + block(x)). The others have a last norm after all layers. kPre: x = x +
/// block(norm(x)). kBoth: x = x + output_norm(block(norm(x))). kParallel: x = x +
/// attention(norm(x))
/// + feed_forward(norm(x)), each with a norm of its own or both with one.
enum class NormPlacement : uint8_t { kPost, kPre, kBoth, kParallel };
enum class PositionKind : uint8_t { kNone, kLearned };

/// Rotary position embedding of queries and keys. If no frequencies are given, frequency j is
/// theta^(-2 j / dims) / factor.
struct RopeSpec {
  std::vector<float> frequencies;  // [dims / 2], or empty
  float attention_factor = 1;      // multiplies queries and keys
  float theta = 0;
  float local_theta = 0;  // for layers with a window
  int64_t dims = 0;       // number of leading columns of a head that are rotated
  float factor = 1;
  float local_factor = 1;    // for layers with a window
  bool interleaved = false;  // weights are for the rotation of columns 2 j and 2 j + 1
};

/// A classifier. It labels each sequence, from the output of the pooler head or from its pooled
/// tokens, or it labels each token.
struct ClassifierSpec {
  enum class Input : uint8_t { kPooler, kCls, kMean, kLast, kTokens };
  Input input = Input::kCls;
  int32_t padding_id = -1;  // of kLast: PoolArgs::skipped_id
  int64_t num_labels = 0;
  std::optional<Activation> dense;  // activation of a preceding dense layer, if there is one
  bool dense_bias = true;
  bool dense_norm = false;  // whether a norm of the model's kind follows the activation
  bool bias = true;

  bool per_token() const { return input == Input::kTokens; }
};

/// Logits over the vocabulary: decoder(norm(activation(dense(x)))). The norm is of the model's
/// kind; dense and norm have the width of the embedding tables.
struct MaskedLmSpec {
  Activation activation = Activation::kGelu;
  bool dense_bias = true;
  bool decoder_bias = true;
  bool sparse = false;        // whether the model makes sparse vectors
  bool sparse_sum = false;    // SparsePoolArgs::sum
  bool sparse_twice = false;  // SparsePoolArgs::twice
};

/// The head of a causal language model. It makes logits over the vocabulary: soft_cap * tanh(z /
/// soft_cap) for z = scale * decoder(projection(x)).
struct LmSpec {
  bool tied = false;        // the decoder is the table of words
  bool bias = false;        // of the decoder
  bool projection = false;  // a dense layer from the hidden size to the width of the tables
  float scale = 1;
  float soft_cap = 0;  // 0: logits are not capped
};

/// One layer in a sequence of dense layers, each of which takes the output of the one before.
struct DenseSpec {
  int64_t size = 0;
  bool bias = true;
  bool residual = false;  // adds its input, through another dense layer if the sizes differ
  Activation activation = Activation::kNone;
};

/// The head that makes a vector of each token.
struct VectorsSpec {
  std::vector<DenseSpec> layers;  // at least one
  bool normalize = true;

  int64_t size() const { return layers.back().size; }
};

/// The head that makes one embedding of a sequence by pooling.
struct EmbeddingSpec {
  std::vector<Pooling> poolings = {Pooling::kCls};  // their results are concatenated
  std::vector<DenseSpec> dense;                     // layers after pooling
  bool normalize = false;
};

/// The stem makes the input of the first layer from rows of tables, one row of each table for each
/// token.
struct StemSpec {
  int64_t vocab_size = 0;
  int64_t embedding_size = 0;        // number of columns of the tables
  float embedding_scale = 1;         // multiplies the rows of the table of words
  std::optional<DType> table_dtype;  // of the table of words in the files, if that is 16 bits
  bool projection = false;           // whether a dense layer maps that width to the hidden size
  bool projection_bias = true;
  bool positions_after_projection = false;  // their table then has hidden_size columns
  int64_t type_vocab_size = 0;
  PositionKind position_kind = PositionKind::kLearned;
  int64_t num_positions = 0;  // number of positions, including `position_offset`
  int64_t position_offset = 0;
  int32_t padding_id = -1;  // EmbedArgs::skipped_id
  bool norm = true;
};

/// The term that attention adds to its scores.
struct ScoreTermSpec {
  ScoreTermKind kind = ScoreTermKind::kNone;
  int64_t num_buckets = 0;  // disentangled: in each direction; 0: one for each distance
  int64_t max_distance = 0;
  bool content_to_position = false;  // disentangled: whether it has this term
  bool position_to_content = false;
  bool shared_projections = false;  // disentangled: positions use the content's projections
  bool norm = false;                // disentangled: whether the table of positions has a norm

  /// The number of rows of the table of relative positions.
  int64_t num_relative() const { return 2 * (num_buckets > 0 ? num_buckets : max_distance); }
};

/// Compressed convolutional attention (CcaArgs): the widths of its convolutions.
struct CompressionSpec {
  int64_t depthwise_width = 0;
  int64_t grouped_width = 0;

  /// Tokens before one that its heads of queries and keys depend on.
  int64_t reach() const { return depthwise_width + grouped_width - 2; }
};

struct AttentionSpec {
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  bool causal = false;
  int64_t window = 0;  // largest distance that local layers see
  std::optional<RopeSpec> rope;
  ScoreTermSpec score_term;
  bool qk_norm = false;
  std::optional<CompressionSpec> compression;
  bool qkv_bias = true;
  bool key_bias = true;  // also of the projection of positions to keys
  bool output_bias = true;
  std::optional<float> scale;  // of products of queries and keys; default 1 / sqrt(head_dim)
  float soft_cap = 0;          // AttentionArgs::soft_cap

  bool disentangled() const { return score_term.kind == ScoreTermKind::kDisentangled; }
  /// Whether layers with a window have rotation frequencies of their own.
  bool has_local_theta() const {
    return rope && (rope->local_theta != rope->theta || rope->local_factor != rope->factor);
  }
};

/// A mixture of gated feed-forward blocks (MoeArgs), one of which a router chooses for each
/// token, or none. The router computes a state of the token in each layer, of that of the layer
/// before and the input of the block.
struct MoeSpec {
  int64_t num_experts = 0;
  int64_t router_size = 0;  // columns of the state

  /// The experts, and none of them.
  int64_t num_classes() const { return num_experts + 1; }
};

struct FeedForwardSpec {
  std::optional<MoeSpec> moe;
  bool gated = false;
  int64_t size = 0;  // intermediate size
  Activation activation = Activation::kGelu;
  bool up_bias = true;
  bool down_bias = true;
};

/// A convolution over the input of the first layer.
struct ConvolutionSpec {
  int64_t width = 0;  // 0: none
  Activation activation = Activation::kNone;
};

/// The stack of layers.
struct StackSpec {
  int64_t num_layers = 0;
  std::vector<int32_t> layer_weights;  // [num_layers] the set of weights of each layer
  std::vector<bool> local_layers;      // [num_layers] whether the layer has the window
  std::vector<bool> rotated_layers;    // [num_layers] whether the layer rotates, if there is a rope
  NormPlacement norm_placement = NormPlacement::kPost;
  bool shared_norm = false;          // parallel: whether both blocks have one norm
  bool first_attention_norm = true;  // pre-norm: whether the first attention has a norm
  bool residual_scales = false;      // pre-norm: whether residuals are as AddScaledArgs says
  AttentionSpec attention;
  FeedForwardSpec feed_forward;
  ConvolutionSpec convolution;

  /// Whether blocks compute from a norm of the hidden state.
  bool pre_norm() const { return norm_placement != NormPlacement::kPost; }
  /// Whether the output of a block has a norm before it is added.
  bool output_norms() const { return norm_placement == NormPlacement::kBoth; }
  bool parallel() const { return norm_placement == NormPlacement::kParallel; }
  int64_t num_weight_sets() const;
};

/// The heads, which compute outputs from the last hidden state.
struct HeadsSpec {
  EmbeddingSpec embedding;
  std::optional<Activation> pooler;  // activation of the pooler head, if there is one
  std::optional<ClassifierSpec> classifier;
  std::optional<MaskedLmSpec> masked_lm;
  std::optional<LmSpec> lm;
  std::optional<VectorsSpec> vectors;
  bool token_weights = false;
};

/// The form of all norms of a model; those of the heads of queries and keys have its eps and
/// gamma_offset.
struct NormSpec {
  NormKind kind = NormKind::kLayer;
  float eps = 1e-12f;
  bool bias = true;
  float gamma_offset = 0;  // added to every gamma of the source
};

struct Spec {
  int64_t hidden_size = 0;
  int64_t max_seqlen = 0;
  NormSpec norm;
  StemSpec stem;
  StackSpec stack;
  HeadsSpec heads;
  /// The dense layers whose weights are quantised in groups, by their names without ".weight".
  std::map<std::string, WeightGroups> quantized;

  /// The number of columns of all poolings together.
  int64_t pooled_columns() const {
    return hidden_size * static_cast<int64_t>(heads.embedding.poolings.size());
  }
  /// The number of columns of the embedding.
  int64_t embedding_columns() const {
    const std::vector<DenseSpec>& dense = heads.embedding.dense;
    return dense.empty() ? pooled_columns() : dense.back().size;
  }
  /// Whether the model uses position ids. Some models know only distances.
  bool takes_positions() const {
    return stem.position_kind != PositionKind::kNone || stack.attention.rope.has_value();
  }
};

/// Parses and validates the JSON text. Throws InvalidArgument naming the field, what was found and
/// what was expected. Unknown fields are errors.
Spec parse_spec(const std::string& json_text);

}  // namespace packhorse
