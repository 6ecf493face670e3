// The spec describes a model by numbers and choices (docs/developer/spec.md): stacks, each with a
// stem and layers that are made of blocks, and heads. It contains no model names.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "model/spec/blocks.h"
#include "ops/args/attention.h"
#include "ops/args/patches.h"
#include "ops/args/rowwise.h"

namespace packhorse {

/// A classifier. It labels each sequence, from the output of the pooler head or from its pooled
/// tokens, or it labels each token.
struct ClassifierSpec {
  enum class Input : uint8_t { kPooler, kCls, kMean, kLast, kTokens, kPoolings };
  Input input = Input::kCls;
  std::vector<Pooling> poolings;  // kPoolings: side by side
  int32_t padding_id = -1;        // kLast: PoolArgs::skipped_id
  int64_t num_labels = 0;
  bool pooled_norm = false;         // kPoolings: whether a norm of the model's kind follows
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
  bool bias = false;        // the decoder has one
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
  bool probe = false;                               // in place of poolings: HeadsSpec::probe
  std::vector<Pooling> poolings = {Pooling::kCls};  // their results are concatenated
  bool norm = false;                                // after pooling, of the model's kind
  std::vector<DenseSpec> dense;                     // layers after pooling
  bool normalize = false;
};

enum class PositionKind : uint8_t { kNone, kLearned };

/// The stem makes the input of a stack's first layer. kTokens: from rows of tables, one row of each
/// table for each token; the fields below describe them. parse_spec refuses the other kinds.
enum class StemKind : uint8_t { kTokens, kPatches, kAudio, kStack };

/// The stem of patches: a dense layer over their elements, learned rows before them, and a learned
/// position for each cell of a grid, which is resized to the grid of an image.
struct PatchesSpec {
  int64_t features = 0;  // elements of a patch
  int64_t prefix = 0;    // rows before the patches
  bool bias = true;
  int64_t grid_rows = 0;  // 0: no positions
  int64_t grid_columns = 0;
  GridResize resize = GridResize::kCubic;

  bool operator==(const PatchesSpec&) const = default;
};

/// Rows that are given beside token ids, such as those of a tower of images: a dense layer makes
/// each the row of a token with a certain id, in order.
struct RowsSpec {
  int64_t features = 0;  // elements of a row; 0: none are given
  bool bias = true;
  int32_t id = -1;

  bool operator==(const RowsSpec&) const = default;
};

/// The stem of audio: two convolutions of width 3 over frames, each with an activation, of which
/// the second takes every second frame; then a learned position is added to each row. So a row
/// stands for kAudioStride frames.
struct AudioSpec {
  int64_t features = 0;  // numbers of a frame, such as logarithms of mel filters
  Activation activation = Activation::kGelu;

  bool operator==(const AudioSpec&) const = default;
};
inline constexpr int64_t kAudioStride = 2;
inline constexpr int64_t kAudioWidth = 3;

struct StemSpec {
  StemKind kind = StemKind::kTokens;
  int64_t vocab_size = 0;
  bool shared_words = false;         // the table of words is that of the stack of sources
  int64_t embedding_size = 0;        // number of columns of the tables
  float embedding_scale = 1;         // multiplies the rows of the table of words
  std::optional<DType> table_dtype;  // dtype of the table of words in the files, if it is 16 bits
  bool projection = false;           // whether a dense layer maps that width to the hidden size
  bool projection_bias = true;
  bool positions_after_projection = false;  // their table then has hidden_size columns
  int64_t type_vocab_size = 0;
  PositionKind position_kind = PositionKind::kLearned;
  int64_t num_positions = 0;  // number of positions, including `position_offset`
  int64_t position_offset = 0;
  int32_t padding_id = -1;  // EmbedArgs::skipped_id
  bool norm = true;
  RowsSpec rows;
  PatchesSpec patches;  // where `kind` is kPatches; of the other fields only `norm` counts then
  AudioSpec audio;      // where `kind` is kAudio; of the other fields those of positions count

  bool operator==(const StemSpec&) const = default;
};

/// A convolution over the input of the first layer.
struct ConvolutionSpec {
  int64_t width = 0;  // 0: none
  Activation activation = Activation::kNone;

  bool operator==(const ConvolutionSpec&) const = default;
};

/// kPost: x = norm(x + block(x)). The others have a last norm after all layers. kPre: x = x +
/// block(norm(x)). kBoth: x = x + output_norm(block(norm(x))). kParallel: all blocks of a layer
/// compute from the same x, x = x + attention(norm(x)) + feed_forward(norm(x)).
enum class NormPlacement : uint8_t { kPost, kPre, kBoth, kParallel };

/// The form of all norms of a stack and of the heads; those of the heads of queries and keys have
/// its eps and gamma_offset.
struct NormSpec {
  NormKind kind = NormKind::kLayer;
  float eps = 1e-12f;
  bool bias = true;
  float gamma_offset = 0;  // added to every gamma of the source

  bool operator==(const NormSpec&) const = default;
};

/// A layer: blocks in the order in which they run. First comes attention over the stack itself,
/// then in decoders of sources cross attention, and then a feed-forward block or a mixture of
/// experts.
struct LayerSpec {
  int32_t weights = 0;  // the set of weights that it runs with; several layers may share one
  std::vector<BlockSpec> blocks;

  bool operator==(const LayerSpec&) const = default;
  const AttentionSpec& attention() const { return *attention_of(blocks.front()); }
};

/// A stack: a stem, and layers that follow it. Heads of queries and keys have the same sizes in all
/// layers.
struct StackSpec {
  std::string name;
  std::string prefix;  // begins names of tensors: "encoder.", or nothing for one alone
  int64_t max_seqlen = 0;
  int64_t hidden_size = 0;
  StemSpec stem;
  NormSpec norm;
  NormPlacement norm_placement = NormPlacement::kPost;
  bool final_norm = true;        // whether a norm follows the last layer; not of kPost
  bool residual_scales = false;  // pre-norm: whether residuals are as AddScaledArgs says
  ConvolutionSpec convolution;
  ScoreTermSpec score_term;     // term of all layers
  std::vector<RopeSpec> ropes;  // AttentionSpec::rope is an index; all have the same dims
  std::vector<LayerSpec> layers;

  bool operator==(const StackSpec&) const = default;
  /// True if blocks compute from a norm of the hidden state.
  bool pre_norm() const { return norm_placement != NormPlacement::kPost; }
  /// True if the output of a block has a norm before it is added.
  bool output_norms() const { return norm_placement == NormPlacement::kBoth; }
  bool parallel() const { return norm_placement == NormPlacement::kParallel; }
  /// For each set of weights the first layer that runs with it.
  std::vector<const LayerSpec*> weight_sets() const;
  /// True if a layer has a block of kind T.
  template <class T>
  bool has() const {
    const auto is_one = [](const BlockSpec& block) {
      return std::holds_alternative<T>(block.kind);
    };
    return std::ranges::any_of(
        layers, [&](const LayerSpec& layer) { return std::ranges::any_of(layer.blocks, is_one); });
  }
};

/// Attention of one learned query over the last hidden state, and a feed-forward block with a norm:
/// y = output(attention), y + down(activation(up(norm(y)))).
struct ProbeSpec {
  int64_t num_heads = 0;
  int64_t size = 0;  // intermediate size
  Activation activation = Activation::kGelu;
};

/// The heads, which compute outputs from the last hidden state.
struct HeadsSpec {
  EmbeddingSpec embedding;
  std::optional<Activation> pooler;  // activation of the pooler head, if there is one
  std::optional<ClassifierSpec> classifier;
  std::optional<MaskedLmSpec> masked_lm;
  std::optional<LmSpec> lm;
  std::optional<VectorsSpec> vectors;
  std::optional<ProbeSpec> probe;
  bool token_weights = false;
};

struct Spec {
  int64_t max_seqlen = 0;  // the last stack's
  /// One stack; or two, of which the second attends to the last hidden state of the first.
  std::vector<StackSpec> stacks = std::vector<StackSpec>(1);
  HeadsSpec heads;
  /// The dense layers whose weights are quantised in groups, by their names without ".weight".
  std::map<std::string, WeightGroups> quantized;

  /// The stack whose hidden state the heads read.
  const StackSpec& stack() const { return stacks.back(); }
  StackSpec& stack() { return stacks.back(); }
  /// The stack that reads sources, or null if the model has none.
  const StackSpec* source() const { return stacks.size() > 1 ? &stacks.front() : nullptr; }
  /// Name of the table of words that the last stack's stem reads.
  std::string word_table() const {
    const bool shared = stack().stem.shared_words && source() != nullptr;
    return (shared ? source() : &stack())->prefix + "embeddings.word";
  }
  /// The number of columns of all poolings together.
  int64_t pooled_columns() const {
    return stack().hidden_size * static_cast<int64_t>(heads.embedding.poolings.size());
  }
  /// The number of columns of the embedding.
  int64_t embedding_columns() const {
    const std::vector<DenseSpec>& dense = heads.embedding.dense;
    return dense.empty() ? pooled_columns() : dense.back().size;
  }
  /// True if the model uses position ids. Some models know only distances.
  bool takes_positions() const {
    return stack().stem.position_kind != PositionKind::kNone || !stack().ropes.empty();
  }
};

/// Parses and validates the JSON text, of format 2 or 1. Throws InvalidArgument naming the field,
/// what was found and what was expected. Unknown fields are errors.
Spec parse_spec(const std::string& json_text);

}  // namespace packhorse
