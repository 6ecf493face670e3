#include "model/spec/spec.h"

#include <algorithm>
#include <string>

#include "core/json.h"
#include "model/spec/json_fields.h"
#include "model/spec/parse_heads.h"
#include "model/spec/parse_quantized.h"
#include "ops/args/cca.h"
#include "packhorse/error.h"

namespace packhorse {
namespace {

constexpr int64_t kSpecFormat = 1;
constexpr size_t kMaxDepth = 32;  // of the JSON

// Limits that no model comes near, low enough that no product of sizes overflows 64 bits.
constexpr int64_t kMaxRows = int64_t{1} << 26;  // of an embedding table; tokens of a sequence
constexpr int64_t kMaxIntermediate = int64_t{1} << 24;
constexpr int64_t kMaxLayers = int64_t{1} << 12;
constexpr int64_t kMaxHeads = int64_t{1} << 12;
constexpr int64_t kMaxHeadDim = int64_t{1} << 12;
constexpr int64_t kMaxConvolution = 255;
constexpr int64_t kMostExperts = 1024;
constexpr int64_t kMostExpertsTogether = int64_t{1} << 17;  // of all layers
constexpr int64_t kMaxBuckets = 2048;
constexpr int64_t kMaxDistance = int64_t{1} << 24;
// A table of relative positions has a row for each distance, and buckets are computed from each.
constexpr int64_t kMaxRelativeDistance = int64_t{1} << 14;

// Reads which set of weights each layer uses. Every set up to the highest must be used, because a
// gap would leave weights that nothing reads.
void parse_layer_weights(Fields& fields, StackSpec& stack) {
  if (!fields.has("layer_weights")) {
    for (int32_t i = 0; i < stack.num_layers; ++i) stack.layer_weights.push_back(i);
    return;
  }
  stack.layer_weights = fields.indices("layer_weights", stack.num_layers - 1);
  std::vector<bool> used(static_cast<size_t>(stack.num_weight_sets()));
  for (const int32_t set : stack.layer_weights) used[static_cast<size_t>(set)] = true;
  if (static_cast<int64_t>(stack.layer_weights.size()) != stack.num_layers ||
      std::find(used.begin(), used.end(), false) != used.end()) {
    throw InvalidArgument(concat("spec: 'layer_weights' is ", fields.get("layer_weights").dump(),
                                 ", expected one number for each of the ", stack.num_layers,
                                 " layers, without gaps"));
  }
}

void parse_sizes(Fields& fields, Spec& spec) {
  spec.stem.vocab_size = fields.integer("vocab_size", 1, kMaxRows);
  spec.hidden_size = fields.integer("hidden_size", 1, kMaxHidden);
  spec.stem.projection = fields.has("embedding_size");
  spec.stem.embedding_size = fields.integer("embedding_size", 1, kMaxHidden, spec.hidden_size);
  if (spec.stem.projection) spec.stem.projection_bias = fields.boolean("embedding_bias", true);
  if (fields.has("table_dtype")) {
    spec.stem.table_dtype = fields.choice<DType>(
        "table_dtype", {{"float16", DType::kFloat16}, {"bfloat16", DType::kBFloat16}});
  }
  spec.stem.embedding_scale = fields.positive_number("embedding_scale", 1.0f);
  spec.stack.num_layers = fields.integer("num_layers", 0, kMaxLayers);
  parse_layer_weights(fields, spec.stack);
  spec.stem.type_vocab_size = fields.integer("type_vocab_size", 0, kMaxRows, 0);
}

// Reads the sizes of the attention and feed-forward blocks.
void parse_block_sizes(Fields& fields, Spec& spec) {
  AttentionSpec& attention = spec.stack.attention;
  attention.num_heads = fields.integer("num_heads", 1, kMaxHeads);
  attention.num_kv_heads = fields.integer("num_kv_heads", 1, kMaxHeads, attention.num_heads);
  if (attention.num_heads % attention.num_kv_heads != 0) {
    throw InvalidArgument(concat("spec: 'num_heads' ", attention.num_heads,
                                 " is not a multiple of 'num_kv_heads' ", attention.num_kv_heads));
  }
  if (!fields.has("head_dim") && spec.hidden_size % attention.num_heads != 0) {
    throw InvalidArgument(concat("spec: 'hidden_size' ", spec.hidden_size,
                                 " is not a multiple of 'num_heads' ", attention.num_heads,
                                 " and 'head_dim' is not given"));
  }
  attention.head_dim =
      fields.integer("head_dim", 1, kMaxHeadDim, spec.hidden_size / attention.num_heads);
  spec.stack.feed_forward.size = fields.integer("intermediate_size", 1, kMaxIntermediate);
}

// Reads the positions that are added to the embeddings, and the longest sequence, which they limit.
void parse_positions(Fields& fields, Spec& spec) {
  StemSpec& stem = spec.stem;
  Fields positions = fields.object("positions");
  stem.position_kind = positions.choice<PositionKind>(
      "kind", {{"learned", PositionKind::kLearned}, {"none", PositionKind::kNone}});
  if (stem.position_kind == PositionKind::kNone) {
    positions.done();
    spec.max_seqlen = fields.integer("max_seqlen", 1, kMaxRows);
    stem.num_positions = spec.max_seqlen;
    return;
  }
  stem.num_positions = positions.integer("count", 1, kMaxRows);
  stem.position_offset = positions.integer("offset", 0, kMaxRows, 0);
  if (stem.position_offset > 0) {
    stem.padding_id =
        static_cast<int32_t>(positions.integer("padding_id", 0, stem.vocab_size - 1, -1));
  }
  if (stem.projection) {
    stem.positions_after_projection = positions.boolean("after_projection", false);
  }
  if (stem.positions_after_projection && stem.padding_id >= 0) {
    throw InvalidArgument("spec: 'positions.padding_id' beside 'positions.after_projection'");
  }
  positions.done();
  const int64_t left = stem.num_positions - stem.position_offset;
  if (left <= 0) {
    throw InvalidArgument(concat("spec: 'positions.offset' ", stem.position_offset,
                                 " leaves none of the ", stem.num_positions, " positions"));
  }
  spec.max_seqlen = fields.integer("max_seqlen", 1, kMaxRows, left);
  if (spec.max_seqlen > left) {
    throw InvalidArgument(concat("spec: 'max_seqlen' is ", spec.max_seqlen, ", the position table ",
                                 "serves at most ", left));
  }
}

void parse_norm(Fields fields, Spec& spec) {
  spec.norm.kind =
      fields.choice<NormKind>("kind", {{"layer", NormKind::kLayer}, {"rms", NormKind::kRms}});
  spec.stack.norm_placement =
      fields.choice<NormPlacement>("placement", {{"post", NormPlacement::kPost},
                                                 {"pre", NormPlacement::kPre},
                                                 {"both", NormPlacement::kBoth},
                                                 {"parallel", NormPlacement::kParallel}});
  spec.norm.eps = fields.positive_number("eps");
  spec.norm.bias = fields.boolean("bias", spec.norm.kind == NormKind::kLayer);
  spec.stem.norm = fields.boolean("embeddings", true);
  spec.norm.gamma_offset = fields.number("gamma_offset", 0.0f);
  if (spec.stack.norm_placement == NormPlacement::kPre) {
    spec.stack.first_attention_norm = fields.boolean("first_attention", true);
  }
  if (spec.stack.parallel()) spec.stack.shared_norm = fields.boolean("shared", false);
  fields.done();
}

RopeSpec parse_rope(Fields fields, int64_t head_dim, StackSpec& stack) {
  RopeSpec rope;
  stack.rotated_layers.assign(static_cast<size_t>(stack.num_layers), !fields.has("layers"));
  if (fields.has("layers")) {
    for (const int32_t layer : fields.indices("layers", stack.num_layers - 1)) {
      stack.rotated_layers[static_cast<size_t>(layer)] = true;
    }
  }
  rope.interleaved = fields.boolean("interleaved", false);
  rope.dims = fields.integer("dims", 2, head_dim, head_dim);
  if (fields.has("frequencies")) {
    rope.frequencies = fields.positive_numbers("frequencies", rope.dims / 2);
  } else {
    rope.theta = fields.positive_number("theta");
    rope.local_theta = fields.positive_number("local_theta", rope.theta);
    rope.factor = fields.positive_number("factor", 1.0f);
    rope.local_factor = fields.positive_number("local_factor", rope.factor);
  }
  rope.attention_factor = fields.positive_number("attention_factor", 1.0f);
  fields.done();
  if (rope.attention_factor != 1.0f && rope.dims != head_dim) {
    throw InvalidArgument(concat("spec: 'attention.rope.attention_factor' is ",
                                 rope.attention_factor, ", but only ", rope.dims, " of ", head_dim,
                                 " columns are rotated"));
  }
  if (rope.dims % 2 != 0) {
    throw InvalidArgument(
        concat("spec: 'attention.rope.dims' is ", rope.dims, ", expected an even number"));
  }
  return rope;
}

void parse_disentangled(Fields& fields, ScoreTermSpec& term) {
  term.num_buckets = fields.integer("buckets", 0, kMaxBuckets, 0);
  if (term.num_buckets == 2 || term.num_buckets % 2 != 0) {
    throw InvalidArgument(concat("spec: 'attention.score_term.buckets' is ", term.num_buckets,
                                 ", expected 0 or an even number from 4 on"));
  }
  term.max_distance =
      fields.integer("max_distance", term.num_buckets / 2 + 2, kMaxRelativeDistance);
  term.content_to_position = fields.boolean("content_to_position");
  term.position_to_content = fields.boolean("position_to_content");
  if (!term.content_to_position && !term.position_to_content) {
    throw InvalidArgument("spec: 'attention.score_term' is disentangled, but has neither term");
  }
  term.shared_projections = fields.boolean("shared_projections");
  term.norm = fields.boolean("norm");
}

void parse_score_term(Fields fields, AttentionSpec& attention) {
  ScoreTermSpec& term = attention.score_term;
  term.kind =
      fields.choice<ScoreTermKind>("kind", {{"alibi", ScoreTermKind::kAlibi},
                                            {"bucketed", ScoreTermKind::kBucketed},
                                            {"disentangled", ScoreTermKind::kDisentangled}});
  if (term.kind == ScoreTermKind::kBucketed) {
    term.num_buckets = fields.integer("buckets", 4, kMaxBuckets);
    term.max_distance =
        fields.integer("max_distance", term.num_buckets / 4 + 1, kMaxRelativeDistance);
  }
  if (term.kind == ScoreTermKind::kDisentangled) {
    parse_disentangled(fields, term);
    if (attention.num_heads != attention.num_kv_heads) {
      throw InvalidArgument(
          "spec: a disentangled 'attention.score_term' needs 'num_kv_heads' "
          "equal to 'num_heads'");
    }
  }
  fields.done();
}

CompressionSpec parse_compression(Fields& fields, const AttentionSpec& attention) {
  const int64_t heads = attention.num_kv_heads;
  if ((heads != 1 && heads % 2 != 0) || heads * attention.head_dim % 2 != 0) {
    throw InvalidArgument(concat("spec: 'num_kv_heads' is ", heads, ", 'head_dim' ",
                                 attention.head_dim, ": compressed attention needs an even number ",
                                 "of heads of keys, or one with an even number of columns"));
  }
  for (const char* other : {"qk_norm", "score_term"}) {
    if (!fields.has(other)) continue;
    throw InvalidArgument(concat("spec: 'attention.", other, "' beside compressed attention"));
  }
  return {fields.integer("depthwise_width", 1, kMostCca),
          fields.integer("grouped_width", 1, kMostCca)};
}

void parse_attention(Fields fields, StackSpec& stack) {
  AttentionSpec& attention = stack.attention;
  if (fields.has("kind") && fields.choice<bool>("kind", {{"full", false}, {"compressed", true}})) {
    attention.compression = parse_compression(fields, attention);
  }
  attention.causal = fields.choice<bool>("mask", {{"bidirectional", false}, {"causal", true}});
  attention.qkv_bias = fields.boolean("qkv_bias", true);
  attention.key_bias = fields.boolean("key_bias", attention.qkv_bias);
  attention.output_bias = fields.boolean("output_bias", true);
  attention.qk_norm = fields.boolean("qk_norm", false);
  if (fields.has("scale")) attention.scale = fields.positive_number("scale");
  if (fields.has("soft_cap")) attention.soft_cap = fields.positive_number("soft_cap");
  stack.local_layers.resize(static_cast<size_t>(stack.num_layers));
  if (fields.has("local")) {
    Fields local = fields.object("local");
    attention.window = local.integer("window", 0, kMaxDistance);
    for (const int32_t layer : local.indices("layers", stack.num_layers - 1)) {
      stack.local_layers[static_cast<size_t>(layer)] = true;
    }
    local.done();
  }
  if (fields.has("rope")) {
    attention.rope = parse_rope(fields.object("rope"), attention.head_dim, stack);
  }
  if (fields.has("score_term")) parse_score_term(fields.object("score_term"), attention);
  fields.done();
}

void parse_feed_forward(Fields fields, StackSpec& stack) {
  enum class Kind : uint8_t { kPlain, kGated, kMoe };
  FeedForwardSpec& feed_forward = stack.feed_forward;
  const Kind kind = fields.choice<Kind>(
      "kind", {{"plain", Kind::kPlain}, {"gated", Kind::kGated}, {"mixture", Kind::kMoe}});
  feed_forward.gated = kind != Kind::kPlain;
  feed_forward.activation = parse_activation(fields);
  if (kind == Kind::kMoe) {
    feed_forward.moe = MoeSpec{fields.integer("experts", 1, kMostExperts),
                               fields.integer("router_size", 1, kMaxHidden)};
    const int64_t together = feed_forward.moe->num_experts * stack.num_layers;
    if (together > kMostExpertsTogether) {
      throw InvalidArgument(concat("spec: 'ffn.experts' is ", feed_forward.moe->num_experts,
                                   " in each of ", stack.num_layers, " layers, expected at most ",
                                   kMostExpertsTogether, " together"));
    }
    if (stack.norm_placement != NormPlacement::kPre) {
      throw InvalidArgument("spec: a mixture of experts needs 'norm.placement' \"pre\"");
    }
    return fields.done();
  }
  feed_forward.up_bias = fields.boolean("up_bias", true);
  feed_forward.down_bias = fields.boolean("down_bias", true);
  fields.done();
}

void parse_convolution(Fields fields, StackSpec& stack) {
  ConvolutionSpec& convolution = stack.convolution;
  convolution.width = fields.integer("width", 1, kMaxConvolution);
  convolution.activation = parse_activation(fields);
  fields.done();
  if (convolution.width % 2 == 0 || stack.num_layers == 0) {
    throw InvalidArgument(concat("spec: 'convolution.width' is ", convolution.width, " with ",
                                 stack.num_layers, " layers, expected an odd number and a layer"));
  }
}

// The decoder of a language model reads what the tables of embeddings have the width of.
void check_lm(const Spec& spec) {
  if (!spec.heads.lm || spec.heads.lm->projection || spec.stem.embedding_size == spec.hidden_size) {
    return;
  }
  throw InvalidArgument(concat("spec: 'heads.lm' has no 'projection', but 'embedding_size' is ",
                               spec.stem.embedding_size, ", 'hidden_size' ", spec.hidden_size));
}

Json parse(const std::string& text) {
  try {
    return parse_json(text, kMaxDepth, /*unique_names=*/false);
  } catch (const JsonError& error) {
    if (error.reason() == JsonError::kDepth) {
      throw InvalidArgument(concat("spec: nested more than ", kMaxDepth, " deep"));
    }
    throw InvalidArgument("spec: the text is not valid JSON");
  }
}

void check_format(int64_t format) {
  if (format == kSpecFormat) return;
  throw InvalidArgument(
      concat("spec: 'format' is ", format, ", this runtime reads format ", kSpecFormat,
             ": convert the model anew, with the version that is to run it (packhorse convert "
             "MODEL FOLDER --overwrite)"));
}

}  // namespace

int64_t StackSpec::num_weight_sets() const {
  const auto highest = std::max_element(layer_weights.begin(), layer_weights.end());
  return highest == layer_weights.end() ? 0 : *highest + 1;
}

Spec parse_spec(const std::string& json_text) {
  const Json json = parse(json_text);
  Fields fields(json, "");
  check_format(fields.integer("format", 0, kMaxRows));
  fields.ignore("family");
  fields.ignore("max_length");
  fields.ignore("pair");
  fields.ignore("template");
  fields.ignore("text");

  Spec spec;
  parse_sizes(fields, spec);
  // A model without layers is a table of embeddings: its spec may leave out fields that describe
  // layers.
  const auto says = [&](const char* name) { return spec.stack.num_layers > 0 || fields.has(name); };
  if (says("num_heads")) parse_block_sizes(fields, spec);
  parse_positions(fields, spec);
  spec.stem.norm = says("norm");
  if (spec.stem.norm) parse_norm(fields.object("norm"), spec);
  if (says("attention")) parse_attention(fields.object("attention"), spec.stack);
  if (says("ffn")) parse_feed_forward(fields.object("ffn"), spec.stack);
  spec.stack.residual_scales = fields.boolean("residual_scales", false);
  if (spec.stack.residual_scales && spec.stack.norm_placement != NormPlacement::kPre) {
    throw InvalidArgument("spec: 'residual_scales' needs 'norm.placement' \"pre\"");
  }
  if (fields.has("convolution")) parse_convolution(fields.object("convolution"), spec.stack);
  if (fields.has("heads")) parse_heads(fields.object("heads"), spec.stem.vocab_size, spec.heads);
  check_lm(spec);
  parse_embedding(fields.object("embedding"), spec.heads.embedding);
  parse_quantized(fields, spec);
  fields.done();
  return spec;
}

}  // namespace packhorse
