// Format 1, in which all layers are alike but for lists of their numbers: sizes at the top of the
// document, 'attention' and 'ffn' of all layers, and beside them the numbers of those that have a
// window, rotate, or share weights.
#include <algorithm>

#include "model/spec/parse.h"
#include "packhorse/error.h"

namespace packhorse {
namespace {

class Format1 {
 public:
  Format1(Fields& fields, Spec& spec) : fields_(fields), spec_(spec), stack_(spec.stack()) {}

  void parse() {
    stack_.hidden_size = fields_.integer("hidden_size", 1, kMaxHidden);
    parse_tables(fields_, stack_.hidden_size, stack_.stem);
    stack_.layers.resize(static_cast<size_t>(fields_.integer("num_layers", 0, kMaxLayers)));
    parse_weights();
    CcaSpec attention;
    FeedForwardSpec feed_forward;
    const bool sized = says("num_heads");
    if (sized) {
      parse_head_sizes(fields_, stack_.hidden_size, attention);
      feed_forward.size = fields_.integer("intermediate_size", 1, kMaxIntermediate);
    }
    parse_positions(fields_, fields_, stack_.stem, spec_.max_seqlen);
    stack_.stem.norm = says("norm");
    if (stack_.stem.norm) parse_norms(fields_.object("norm"));
    if (says("attention")) parse_layers_attention(fields_.object("attention"), attention);
    if (says("ffn")) parse_layers_ffn(fields_.object("ffn"), feed_forward);
    parse_residual_scales(fields_, stack_);
    if (fields_.has("convolution")) {
      stack_.convolution = parse_convolution(fields_.object("convolution"), num_layers());
    }
  }

 private:
  int64_t num_layers() const { return static_cast<int64_t>(stack_.layers.size()); }
  // A model without layers is a table of embeddings: its spec may leave out fields that describe
  // layers.
  bool says(const char* name) const { return !stack_.layers.empty() || fields_.has(name); }
  std::vector<bool> marked(Fields& fields, const char* list) const {
    std::vector<bool> result(stack_.layers.size());
    for (const int32_t layer : fields.indices(list, num_layers() - 1)) {
      result[static_cast<size_t>(layer)] = true;
    }
    return result;
  }

  // Every set of weights up to the highest must be used, because a gap would leave weights that
  // nothing reads.
  void parse_weights() {
    std::vector<int32_t> sets;
    if (fields_.has("layer_weights")) {
      sets = fields_.indices("layer_weights", num_layers() - 1);
    } else {
      for (int32_t i = 0; i < num_layers(); ++i) sets.push_back(i);
    }
    std::vector<bool> used(sets.empty() ? 0
                                        : static_cast<size_t>(*std::ranges::max_element(sets)) + 1);
    for (const int32_t set : sets) used[static_cast<size_t>(set)] = true;
    if (sets.size() != stack_.layers.size() || std::ranges::count(used, false) > 0) {
      throw InvalidArgument(concat("spec: 'layer_weights' is ", fields_.get("layer_weights").dump(),
                                   ", expected one number for each of the ", num_layers(),
                                   " layers, without gaps"));
    }
    for (size_t i = 0; i < sets.size(); ++i) stack_.layers[i].weights = sets[i];
  }

  void parse_norms(Fields fields) {
    parse_norm(fields, stack_);
    stack_.stem.norm = fields.boolean("embeddings", true);
    if (stack_.norm_placement == NormPlacement::kPre && !fields.boolean("first_attention", true)) {
      first_attention_ = BlockNorm::kNone;
    }
    if (stack_.parallel() && fields.boolean("shared", false)) feed_forward_ = BlockNorm::kShared;
    fields.done();
  }

  void parse_layers_attention(Fields fields, CcaSpec attention) {
    const bool compressed =
        fields.has("kind") && fields.choice<bool>("kind", {{"full", false}, {"compressed", true}});
    if (compressed) parse_cca(fields, attention);
    parse_attention(fields, attention);
    std::vector<bool> local(stack_.layers.size());
    int64_t window = 0;
    if (fields.has("local")) {
      Fields object = fields.object("local");
      window = object.integer("window", 0, kMaxDistance);
      local = marked(object, "layers");
      object.done();
    }
    std::vector<bool> rotated(stack_.layers.size());
    if (fields.has("rope")) {
      rotated = parse_ropes(fields.object("rope"), attention.head_dim);
    }
    if (fields.has("score_term")) {
      stack_.score_term = parse_score_term(fields.object("score_term"), attention);
    }
    fields.done();
    for (size_t i = 0; i < stack_.layers.size(); ++i) {
      CcaSpec own = attention;
      if (local[i]) own.window = window;
      if (rotated[i]) own.rope = local[i] ? stack_.ropes.size() - 1 : 0;
      LayerSpec& layer = stack_.layers[i];
      BlockSpec block;
      block.norm = layer.weights == 0 ? first_attention_ : BlockNorm::kOwn;
      if (compressed) {
        block.kind = own;
      } else {
        block.kind = SelfAttentionSpec{AttentionSpec(own)};
      }
      layer.blocks.push_back(block);
    }
  }

  // Layers with a window may have a rotation of their own.
  std::vector<bool> parse_ropes(Fields fields, int64_t head_dim) {
    const std::vector<bool> rotated = fields.has("layers")
                                          ? marked(fields, "layers")
                                          : std::vector<bool>(stack_.layers.size(), true);
    const bool given = fields.has("frequencies");
    const float theta = given ? 0 : fields.positive_number("theta");
    const float factor = given ? 0 : fields.positive_number("factor", 1.0f);
    const float local_theta = given ? 0 : fields.positive_number("local_theta", theta);
    const float local_factor = given ? 0 : fields.positive_number("local_factor", factor);
    RopeSpec rope = parse_rope(fields, head_dim);
    rope.name = "global";
    stack_.ropes.push_back(rope);
    if (local_theta != theta || local_factor != factor) {
      rope.name = "local";
      rope.theta = local_theta;
      rope.factor = local_factor;
      stack_.ropes.push_back(rope);
    }
    return rotated;
  }

  void parse_layers_ffn(Fields fields, FeedForwardSpec feed_forward) {
    enum class Kind : uint8_t { kPlain, kGated, kMoe };
    const Kind kind = fields.choice<Kind>(
        "kind", {{"plain", Kind::kPlain}, {"gated", Kind::kGated}, {"mixture", Kind::kMoe}});
    feed_forward.gated = kind == Kind::kGated;
    feed_forward.activation = parse_activation(fields);
    BlockSpec block{.norm = feed_forward_, .kind = feed_forward};
    if (kind == Kind::kMoe) {
      MoeSpec moe;
      moe.num_experts = fields.integer("experts", 1, kMostExperts);
      moe.size = feed_forward.size;
      moe.activation = feed_forward.activation;
      moe.router.size = fields.integer("router_size", 1, kMaxHidden);
      if (moe.num_experts * num_layers() > kMostExpertsTogether) {
        throw InvalidArgument(concat("spec: 'ffn.experts' is ", moe.num_experts, " in each of ",
                                     num_layers(), " layers, expected at most ",
                                     kMostExpertsTogether, " together"));
      }
      check_moe_placement(stack_);
      block.kind = moe;
    } else {
      parse_feed_forward_biases(fields, feed_forward);
      block.kind = feed_forward;
    }
    fields.done();
    for (LayerSpec& layer : stack_.layers) {
      layer.blocks.push_back(block);
      if (auto* moe = std::get_if<MoeSpec>(&layer.blocks.back().kind)) {
        moe->router.takes_state = layer.weights > 0;
      }
    }
  }

  Fields& fields_;
  Spec& spec_;
  StackSpec& stack_;
  BlockNorm first_attention_ = BlockNorm::kOwn;
  BlockNorm feed_forward_ = BlockNorm::kOwn;
};

}  // namespace

void parse_format1(Fields& fields, Spec& spec) {
  spec.stack().name = "main";
  Format1(fields, spec).parse();
}

}  // namespace packhorse
