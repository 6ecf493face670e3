// Format 2: named stacks of layers, which are lists of blocks.
#include <algorithm>
#include <tuple>
#include <utility>

#include "model/spec/parse.h"
#include "packhorse/error.h"

namespace packhorse {
namespace {

constexpr size_t kMostRopes = 16;

enum class BlockKind : uint8_t { kSelfAttention, kCrossAttention, kCca, kFeedForward, kMoe };

class StackParser {
 public:
  /// `others`: names of the document's other stacks.
  StackParser(Fields fields, std::vector<std::string> others, StackSpec& stack)
      : fields_(std::move(fields)), others_(std::move(others)), stack_(stack) {}

  /// `top`: the document, which has the longest sequence of a stack that is alone.
  void parse(Fields& top) {
    stack_.hidden_size = fields_.integer("hidden_size", 1, kMaxHidden);
    const std::vector<Fields> layers = fields_.objects("layers");
    if (static_cast<int64_t>(layers.size()) > kMaxLayers) {
      throw InvalidArgument(concat("spec: '", fields_.path("layers"), "' has ", layers.size(),
                                   " layers, expected at most ", kMaxLayers));
    }
    // A stack without layers is a table of embeddings: it may have no norm.
    const bool normed = !layers.empty() || fields_.has("norm");
    if (normed) {
      Fields norm = fields_.object("norm");
      parse_norm(norm, stack_);
      norm.done();
    }
    parse_stem(fields_.object("stem"), normed, others_.empty() ? top : fields_);
    parse_residual_scales(fields_, stack_);
    if (!layers.empty()) parse_layers(layers);
    fields_.done();
  }

 private:
  void parse_stem(Fields fields, bool normed, Fields& limits) {
    StemSpec& stem = stack_.stem;
    stem.kind = fields.choice<StemKind>("kind", {{"tokens", StemKind::kTokens},
                                                 {"patches", StemKind::kPatches},
                                                 {"audio", StemKind::kAudio},
                                                 {"stack", StemKind::kStack}});
    const bool takes_patches = stem.kind == StemKind::kPatches && others_.empty();
    const bool takes_audio = stem.kind == StemKind::kAudio && !others_.empty();
    if (stem.kind != StemKind::kTokens && !takes_patches && !takes_audio) {
      const bool alone = others_.empty();
      refuse(fields, "kind", alone ? "\"tokens\" or \"patches\"" : "\"tokens\" or \"audio\"",
             alone ? "in a model of one stack" : "in a model of two stacks");
    }
    if (takes_patches) {
      parse_patches(fields, limits, stack_);
    } else if (takes_audio) {
      parse_audio(fields, limits, stack_);
    } else {
      parse_tables(fields, stack_.hidden_size, stem);
      parse_positions(fields, limits, stem, stack_.max_seqlen);
    }
    if (others_.empty() && stem.kind == StemKind::kTokens && fields.has("rows")) {
      parse_rows(fields.object("rows"), stem);
    }
    if (!others_.empty() && !takes_audio && fields.has("words")) {
      fields.index_of("words", others_);
      stem.shared_words = true;
    }
    stem.norm = normed && fields.boolean("norm", true);
    fields.done();
  }

  void parse_layers(const std::vector<Fields>& layers) {
    std::vector<std::string> ropes;
    if (fields_.has("ropes")) ropes = fields_.object("ropes").names();
    for (size_t i = 0; i < layers.size(); ++i) {
      Fields fields = layers[i];
      LayerSpec layer;
      layer.weights = static_cast<int32_t>(fields.integer(
          "weights", 0, static_cast<int64_t>(layers.size()) - 1, static_cast<int64_t>(i)));
      for (Fields& block : fields.objects("blocks")) {
        layer.blocks.push_back(parse_block(block, ropes));
      }
      fields.done();
      check_layer(fields, layer);
      stack_.layers.push_back(layer);
    }
    check_weights();
    const AttentionSpec& attention = stack_.layers.front().attention();
    if (fields_.has("ropes")) parse_ropes(fields_.object("ropes"), ropes, attention.head_dim);
    if (fields_.has("score_term")) {
      if (stack_.has<CcaSpec>()) {
        throw InvalidArgument(
            concat("spec: '", fields_.path("score_term"), "' beside compressed attention"));
      }
      stack_.score_term = parse_score_term(fields_.object("score_term"), attention);
      if (stack_.score_term.kind == ScoreTermKind::kGrid) check_grid_term();
    }
    if (fields_.has("convolution")) {
      stack_.convolution = parse_convolution(fields_.object("convolution"),
                                             static_cast<int64_t>(stack_.layers.size()));
    }
  }

  void check_grid_term() {
    const auto hides = [](const LayerSpec& layer) {
      return layer.attention().causal || layer.attention().window.has_value();
    };
    if (stack_.stem.kind == StemKind::kPatches && stack_.stem.patches.prefix == 1 &&
        std::ranges::none_of(stack_.layers, hides)) {
      return;
    }
    throw InvalidArgument(concat("spec: '", fields_.path("score_term"),
                                 "' of grids needs a stem of patches with a 'prefix' of 1, and ",
                                 "attention without a mask or a window"));
  }

  void parse_ropes(Fields fields, const std::vector<std::string>& names, int64_t head_dim) {
    if (names.size() > kMostRopes) {
      throw InvalidArgument(concat("spec: '", fields_.path("ropes"), "' has ", names.size(),
                                   " rotations, expected at most ", kMostRopes));
    }
    for (const std::string& name : names) {
      Fields one = fields.object(name.c_str());
      stack_.ropes.push_back(parse_rope(one, head_dim));
      RopeSpec& rope = stack_.ropes.back();
      rope.name = name;
      const RopeSpec& first = stack_.ropes.front();
      // Queries and keys of all layers lie in memory as the device rotates them.
      if (rope.dims != first.dims || rope.interleaved != first.interleaved) {
        throw InvalidArgument(concat("spec: '", fields_.path("ropes"), "' has rotations of other ",
                                     "'dims' or 'interleaved', expected one form in a stack"));
      }
      if (rope.grid && stack_.stem.kind != StemKind::kPatches) {
        refuse(one, "grid", "false", "without a stem of patches");
      }
      if (rope.grid && stack_.has<CcaSpec>()) {
        refuse(one, "grid", "false", "beside compressed attention");
      }
    }
  }

  BlockSpec parse_block(Fields& fields, const std::vector<std::string>& ropes) {
    const BlockKind kind =
        fields.choice<BlockKind>("kind", {{"self_attention", BlockKind::kSelfAttention},
                                          {"cross_attention", BlockKind::kCrossAttention},
                                          {"cca", BlockKind::kCca},
                                          {"feed_forward", BlockKind::kFeedForward},
                                          {"moe", BlockKind::kMoe}});
    BlockSpec block;
    switch (kind) {
      case BlockKind::kCrossAttention: {
        if (others_.empty()) {
          refuse(fields, "kind", "\"self_attention\", \"cca\", \"feed_forward\" or \"moe\"",
                 "in a model of one stack");
        }
        CrossAttentionSpec cross;
        cross.stack = others_[fields.index_of("stack", others_)];
        parse_head_sizes(fields, stack_.hidden_size, cross);
        parse_projections(fields, cross);
        block.kind = cross;
        break;
      }
      case BlockKind::kSelfAttention: {
        SelfAttentionSpec attention;
        parse_attention_block(fields, ropes, attention);
        block.kind = attention;
        break;
      }
      case BlockKind::kCca: {
        CcaSpec cca;
        parse_attention_block(fields, ropes, cca);
        parse_cca(fields, cca);
        block.kind = cca;
        break;
      }
      case BlockKind::kFeedForward: {
        FeedForwardSpec feed_forward;
        feed_forward.gated = fields.boolean("gated", false);
        feed_forward.size = fields.integer("size", 1, kMaxIntermediate);
        feed_forward.activation = parse_activation(fields);
        parse_feed_forward_biases(fields, feed_forward);
        block.kind = feed_forward;
        break;
      }
      case BlockKind::kMoe:
        block.kind = parse_moe(fields);
    }
    block.norm = parse_block_norm(fields, attention_of(block) != nullptr);
    fields.done();
    return block;
  }

  void parse_attention_block(Fields& fields, const std::vector<std::string>& ropes,
                             AttentionSpec& attention) {
    parse_head_sizes(fields, stack_.hidden_size, attention);
    parse_attention(fields, attention);
    if (fields.has("window")) attention.window = fields.integer("window", 0, kMaxDistance);
    if (fields.has("rope")) attention.rope = fields.index_of("rope", ropes);
  }

  MoeSpec parse_moe(Fields& fields) {
    MoeSpec moe;
    moe.num_experts = fields.integer("experts", 1, kMostExperts);
    moe.size = fields.integer("size", 1, kMaxIntermediate);
    moe.activation = parse_activation(fields);
    Fields router = fields.object("router");
    moe.router.kind = router.choice<RouterKind>("kind", {{"state", RouterKind::kState},
                                                         {"softmax", RouterKind::kSoftmax},
                                                         {"sigmoid", RouterKind::kSigmoid}});
    if (moe.router.kind != RouterKind::kState) refuse(router, "kind", "\"state\"");
    moe.router.size = router.integer("size", 1, kMaxHidden);
    moe.router.takes_state = router.boolean("takes_state");
    router.done();
    experts_ += moe.num_experts;
    if (experts_ > kMostExpertsTogether) {
      throw InvalidArgument(concat("spec: '", fields.path("experts"), "' makes ", experts_,
                                   " experts, expected at most ", kMostExpertsTogether,
                                   " in all layers together"));
    }
    check_moe_placement(stack_);
    return moe;
  }

  // Only some placements of norms let a block go without one of its own.
  BlockNorm parse_block_norm(Fields& fields, bool attends) const {
    if (!fields.has("norm")) return BlockNorm::kOwn;
    const Json& value = fields.get("norm");
    const bool optional = attends && stack_.norm_placement == NormPlacement::kPre;
    const bool shares = !attends && stack_.parallel();
    if (value.is_boolean() && value.boolean()) return BlockNorm::kOwn;
    if (value.is_boolean() && optional) return BlockNorm::kNone;
    if (value.is_string() && value.text() == "shared" && shares) return BlockNorm::kShared;
    fields.fail("norm", value,
                optional ? "true or false"
                : shares ? "true or \"shared\""
                         : "true, or no field");
  }

  // Checks the shape that buffers, caches and names of tensors rely on.
  void check_layer(const Fields& fields, const LayerSpec& layer) {
    const auto is_feed_forward = [](const BlockSpec& block) {
      return attention_of(block) == nullptr;
    };
    const auto crosses = [](const BlockSpec& block) {
      return std::holds_alternative<CrossAttentionSpec>(block.kind);
    };
    const bool has_cross = layer.blocks.size() == 3 && crosses(layer.blocks[1]);
    if ((layer.blocks.size() != 2 && !has_cross) || is_feed_forward(layer.blocks.front()) ||
        crosses(layer.blocks.front()) || !is_feed_forward(layer.blocks.back())) {
      throw InvalidArgument(
          concat("spec: '", fields.path("blocks"), "' expected two blocks",
                 others_.empty() ? "" : ", or three with \"cross_attention\" between them",
                 ", of which the first attends: \"self_attention\" or "
                 "\"cca\", then \"feed_forward\" or \"moe\""));
    }
    if (has_cross) check_cross_attention(fields, layer);
    const MoeSpec* const moe = std::get_if<MoeSpec>(&layer.blocks.back().kind);
    if (moe != nullptr && !moe_ && moe->router.takes_state) {
      throw InvalidArgument(concat("spec: '", fields.path("blocks[1].router.takes_state"),
                                   "' is true, but no layer before has a router"));
    }
    if (moe != nullptr && moe_ &&
        (moe->router.size != moe_->router.size || moe->num_experts != moe_->num_experts)) {
      throw InvalidArgument(concat("spec: '", fields.path("blocks[1]"),
                                   "' has another number of experts or columns of its router's "
                                   "state than layers before"));
    }
    if (moe != nullptr) moe_ = *moe;
    if (stack_.layers.empty()) return;
    if (layer.blocks.size() != stack_.layers.front().blocks.size()) {
      throw InvalidArgument(concat("spec: '", fields.path("blocks"), "' has ", layer.blocks.size(),
                                   " blocks, those of the first layer ",
                                   stack_.layers.front().blocks.size()));
    }
    const BlockSpec& first = stack_.layers.front().blocks.front();
    const AttentionSpec& one = layer.attention();
    const AttentionSpec& expected = *attention_of(first);
    const auto* cca = std::get_if<CcaSpec>(&layer.blocks.front().kind);
    const auto* first_cca = std::get_if<CcaSpec>(&first.kind);
    const bool same_heads = one.num_heads == expected.num_heads &&
                            one.num_kv_heads == expected.num_kv_heads &&
                            one.head_dim == expected.head_dim;
    const bool same_cca = (cca == nullptr) == (first_cca == nullptr) &&
                          (cca == nullptr || (cca->depthwise_width == first_cca->depthwise_width &&
                                              cca->grouped_width == first_cca->grouped_width));
    if (same_heads && same_cca) return;
    throw InvalidArgument(concat("spec: '", fields.path("blocks[0]"),
                                 "' has another kind, or other heads or widths, than that of the "
                                 "first layer"));
  }

  // Keys and values of sources lie in pages of the cache that the layer's own go to.
  void check_cross_attention(const Fields& fields, const LayerSpec& layer) const {
    const AttentionSpec& own = layer.attention();
    const AttentionSpec& cross = *attention_of(layer.blocks[1]);
    if (own.num_heads != cross.num_heads || own.num_kv_heads != cross.num_kv_heads ||
        own.head_dim != cross.head_dim) {
      throw InvalidArgument(concat("spec: '", fields.path("blocks[1]"),
                                   "' has other heads than 'blocks[0]', expected the same"));
    }
    if (stack_.parallel() || std::holds_alternative<CcaSpec>(layer.blocks.front().kind)) {
      throw InvalidArgument(concat(
          "spec: '", fields.path("blocks[1]"), "' is \"cross_attention\" ",
          stack_.parallel() ? "with 'norm.placement' \"parallel\"" : "beside compressed attention",
          ", which this runtime does not run"));
    }
  }

  // Layers that share weights have the same blocks, but for what attention sees and how it rotates.
  void check_weights() const {
    const auto comparable = [](std::vector<BlockSpec> blocks) {
      for (BlockSpec& block : blocks) {
        if (AttentionSpec* attention = attention_of(block)) {
          attention->window.reset();
          attention->rope.reset();
        }
      }
      return blocks;
    };
    const std::vector<const LayerSpec*> sets = stack_.weight_sets();
    if (std::ranges::count(sets, nullptr) > 0) {
      throw InvalidArgument(concat("spec: 'weights' of the layers of '", fields_.path("layers"),
                                   "' leave a gap: expected numbers without gaps, from 0 on"));
    }
    for (size_t i = 0; i < stack_.layers.size(); ++i) {
      const LayerSpec& layer = stack_.layers[i];
      const LayerSpec& first = *sets[static_cast<size_t>(layer.weights)];
      if (&layer == &first || comparable(layer.blocks) == comparable(first.blocks)) continue;
      throw InvalidArgument(concat("spec: '", fields_.path("layers"), "[", i, "]' has the weights ",
                                   layer.weights, " of a layer with other blocks"));
    }
  }

  [[noreturn]] static void refuse(Fields& fields, const char* name, const char* expected,
                                  const char* where = "") {
    fields.fail(
        name, fields.get(name),
        concat(expected, *where == 0 ? "" : " ", where, ": this runtime runs no other yet"));
  }

  Fields fields_;
  const std::vector<std::string> others_;
  StackSpec& stack_;
  std::optional<MoeSpec> moe_;  // the last one so far
  int64_t experts_ = 0;         // experts of all layers so far
};

}  // namespace

namespace {

// Brings the stack that attends to the other one to the end, and checks what both have in common.
void order_stacks(std::vector<StackSpec>& stacks) {
  const auto attends = [](const StackSpec& stack) { return stack.has<CrossAttentionSpec>(); };
  if (attends(stacks.front())) std::swap(stacks.front(), stacks.back());
  const StackSpec& source = stacks.front();
  const StackSpec& target = stacks.back();
  if (attends(source) || !attends(target)) {
    throw InvalidArgument(concat("spec: of 'stacks' ", attends(source) ? "both have" : "none has",
                                 " \"cross_attention\" to the other, expected one that has"));
  }
  if (source.layers.empty()) {
    throw InvalidArgument(concat("spec: 'stacks.", source.name, ".layers' is empty"));
  }
  if (source.stem.shared_words) {
    throw InvalidArgument(concat("spec: 'stacks.", source.name,
                                 ".stem.words' names the stack that ",
                                 "attends to this one, expected the other way"));
  }
  if (target.stem.kind != StemKind::kTokens) {
    throw InvalidArgument(concat("spec: 'stacks.", target.name,
                                 ".stem.kind' is \"audio\", expected \"tokens\" in the stack that "
                                 "attends to the other"));
  }
  if (target.stem.shared_words && source.stem.kind != StemKind::kTokens) {
    throw InvalidArgument(concat("spec: 'stacks.", target.name, ".stem.words' is \"", source.name,
                                 "\", which has no table of words"));
  }
  const auto table = [](const StemSpec& stem) {
    return std::tuple(stem.vocab_size, stem.embedding_size, stem.embedding_scale, stem.table_dtype);
  };
  if (target.stem.shared_words && table(source.stem) != table(target.stem)) {
    throw InvalidArgument(concat("spec: 'stacks.", target.name, ".stem.words' is \"", source.name,
                                 "\", whose table has another size, scale or dtype"));
  }
}

}  // namespace

void parse_format2(Fields& fields, Spec& spec) {
  Fields stacks = fields.object("stacks");
  const std::vector<std::string> names = stacks.names();
  if (names.empty() || names.size() > 2) {
    throw InvalidArgument(
        concat("spec: 'stacks' has ", names.size(),
               " stacks, expected one, or two of which one attends to the other"));
  }
  spec.stacks.resize(names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    StackSpec& stack = spec.stacks[i];
    std::vector<std::string> others = names;
    others.erase(others.begin() + static_cast<ptrdiff_t>(i));
    stack.name = names[i];
    if (!others.empty()) stack.prefix = stack.name + ".";
    StackParser(stacks.object(names[i].c_str()), std::move(others), stack).parse(fields);
  }
  if (names.size() > 1) order_stacks(spec.stacks);
  spec.max_seqlen = spec.stack().max_seqlen;
}

}  // namespace packhorse
