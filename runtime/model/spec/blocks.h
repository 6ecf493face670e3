// The blocks that layers are made of, as a spec describes them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "ops/args/attention.h"
#include "ops/args/dense.h"

namespace packhorse {

/// Rotary position embedding of queries and keys. If no frequencies are given, frequency j is
/// theta^(-2 j / dims) / factor.
struct RopeSpec {
  std::string name;
  std::vector<float> frequencies;  // [dims / 2], or empty
  float attention_factor = 1;      // multiplies queries and keys
  float theta = 0;
  int64_t dims = 0;  // number of leading columns of a head that are rotated
  float factor = 1;
  bool interleaved = false;  // weights are for the rotation of columns 2 j and 2 j + 1
  bool grid = false;         // RotationArgs::grids: the frequencies are [dims / 4], for each axis

  bool operator==(const RopeSpec&) const = default;
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
  bool per_layer = false;           // bucketed, grid: whether each layer has a table of its own
  int64_t grid_rows = 0;            // grid: cells of the table
  int64_t grid_columns = 0;

  /// The number of rows of the table of relative positions.
  int64_t num_relative() const { return 2 * (num_buckets > 0 ? num_buckets : max_distance); }
  /// The number of rows of the table of a bucketed term or a term of grids.
  int64_t table_rows() const {
    return kind == ScoreTermKind::kGrid ? grid_steps(grid_rows, grid_columns) : num_buckets;
  }
  bool has_table() const {
    return kind == ScoreTermKind::kBucketed || kind == ScoreTermKind::kGrid;
  }
  bool disentangled() const { return kind == ScoreTermKind::kDisentangled; }
  bool operator==(const ScoreTermSpec&) const = default;
};

/// The fields of all blocks that attend.
struct AttentionSpec {
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  bool causal = false;
  std::optional<int64_t> window;  // largest distance that queries see; none: all keys
  std::optional<size_t> rope;     // index in StackSpec::ropes; none: heads are not rotated
  bool qk_norm = false;
  bool qkv_bias = true;
  bool key_bias = true;  // also of the projection of positions to keys
  bool output_bias = true;
  std::optional<float> scale;  // factor of query-key products; default 1 / sqrt(head_dim)
  float soft_cap = 0;          // AttentionArgs::soft_cap

  bool operator==(const AttentionSpec&) const = default;
};

/// Attention over the tokens of the stack itself.
struct SelfAttentionSpec : AttentionSpec {
  bool operator==(const SelfAttentionSpec&) const = default;
};

/// Attention over the last hidden state of another stack. It has no mask, rotation or score term.
struct CrossAttentionSpec : AttentionSpec {
  std::string stack;

  bool operator==(const CrossAttentionSpec&) const = default;
};

/// Compressed convolutional attention (CcaArgs): self-attention over heads that two
/// causal convolutions of these widths make.
struct CcaSpec : AttentionSpec {
  int64_t depthwise_width = 0;
  int64_t grouped_width = 0;

  bool operator==(const CcaSpec&) const = default;
};

struct FeedForwardSpec {
  bool gated = false;
  int64_t size = 0;  // intermediate size
  Activation activation = Activation::kGelu;
  bool up_bias = true;
  bool down_bias = true;

  bool operator==(const FeedForwardSpec&) const = default;
};

/// Choice of the experts of a token. kState: one expert, or none, by a small network over a
/// state of the token, which is computed in each layer of that of the layer before and the input of
/// the block. parse_spec refuses the others, which choose several by one dense layer.
enum class RouterKind : uint8_t { kState, kSoftmax, kSigmoid };

struct RouterSpec {
  RouterKind kind = RouterKind::kState;
  int64_t size = 0;          // columns of the state
  bool takes_state = false;  // whether there is a state of a layer before

  bool operator==(const RouterSpec&) const = default;
};

/// A mixture of gated feed-forward blocks (MoeArgs).
struct MoeSpec {
  int64_t num_experts = 0;
  int64_t size = 0;  // intermediate size of an expert
  Activation activation = Activation::kSilu;
  RouterSpec router;

  /// The experts, and none of them.
  int64_t num_classes() const { return num_experts + 1; }
  bool operator==(const MoeSpec&) const = default;
};

/// The norm of a block: one of its own, none, or the result of that of the block before it.
enum class BlockNorm : uint8_t { kOwn, kNone, kShared };

struct BlockSpec {
  BlockNorm norm = BlockNorm::kOwn;
  std::variant<SelfAttentionSpec, CrossAttentionSpec, CcaSpec, FeedForwardSpec, MoeSpec> kind;

  bool operator==(const BlockSpec&) const = default;
};

/// Name of a block among the tensors of its layer.
inline const char* part_of(const BlockSpec& block) {
  if (std::holds_alternative<CrossAttentionSpec>(block.kind)) return "cross_attention";
  const bool attends = std::holds_alternative<SelfAttentionSpec>(block.kind) ||
                       std::holds_alternative<CcaSpec>(block.kind);
  return attends ? "attention" : "ffn";
}

/// The attention of a block, or null if it does not attend.
inline const AttentionSpec* attention_of(const BlockSpec& block) {
  return std::visit(
      [](const auto& kind) -> const AttentionSpec* {
        if constexpr (requires { kind.num_heads; })
          return &kind;
        else
          return nullptr;
      },
      block.kind);
}
inline AttentionSpec* attention_of(BlockSpec& block) {
  return const_cast<AttentionSpec*>(attention_of(std::as_const(block)));
}

}  // namespace packhorse
