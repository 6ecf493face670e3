// Parses what blocks have, and what the blocks of a stack share.
#include "model/spec/parse.h"
#include "ops/args/cca.h"
#include "packhorse/error.h"

namespace packhorse {
namespace {

constexpr int64_t kMaxHeads = int64_t{1} << 12;
constexpr int64_t kMaxHeadDim = int64_t{1} << 12;
constexpr int64_t kMaxConvolution = 255;
constexpr int64_t kMaxBuckets = 2048;
// A table of relative positions has a row for each distance, and buckets are computed from each.
constexpr int64_t kMaxRelativeDistance = int64_t{1} << 14;

void parse_disentangled(Fields& fields, ScoreTermSpec& term) {
  term.num_buckets = fields.integer("buckets", 0, kMaxBuckets, 0);
  if (term.num_buckets == 2 || term.num_buckets % 2 != 0) {
    throw InvalidArgument(concat("spec: '", fields.path("buckets"), "' is ", term.num_buckets,
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

}  // namespace

Activation parse_activation(Fields& fields) {
  return fields.choice<Activation>("activation", {{"gelu", Activation::kGelu},
                                                  {"gelu_tanh", Activation::kGeluTanh},
                                                  {"relu", Activation::kRelu},
                                                  {"silu", Activation::kSilu},
                                                  {"tanh", Activation::kTanh}});
}

void parse_head_sizes(Fields& fields, int64_t hidden_size, AttentionSpec& attention) {
  attention.num_heads = fields.integer("num_heads", 1, kMaxHeads);
  attention.num_kv_heads = fields.integer("num_kv_heads", 1, kMaxHeads, attention.num_heads);
  if (attention.num_heads % attention.num_kv_heads != 0) {
    throw InvalidArgument(concat("spec: '", fields.path("num_heads"), "' ", attention.num_heads,
                                 " is not a multiple of 'num_kv_heads' ", attention.num_kv_heads));
  }
  if (!fields.has("head_dim") && hidden_size % attention.num_heads != 0) {
    throw InvalidArgument(concat("spec: 'hidden_size' ", hidden_size,
                                 " is not a multiple of 'num_heads' ", attention.num_heads,
                                 " and 'head_dim' is not given"));
  }
  attention.head_dim =
      fields.integer("head_dim", 1, kMaxHeadDim, hidden_size / attention.num_heads);
}

void parse_projections(Fields& fields, AttentionSpec& attention) {
  attention.qkv_bias = fields.boolean("qkv_bias", true);
  attention.key_bias = fields.boolean("key_bias", attention.qkv_bias);
  attention.output_bias = fields.boolean("output_bias", true);
  if (fields.has("scale")) attention.scale = fields.positive_number("scale");
}

void parse_attention(Fields& fields, AttentionSpec& attention) {
  attention.causal = fields.choice<bool>("mask", {{"bidirectional", false}, {"causal", true}});
  parse_projections(fields, attention);
  attention.qk_norm = fields.boolean("qk_norm", false);
  if (fields.has("soft_cap")) attention.soft_cap = fields.positive_number("soft_cap");
}

void parse_cca(Fields& fields, CcaSpec& cca) {
  const int64_t heads = cca.num_kv_heads;
  if ((heads != 1 && heads % 2 != 0) || heads * cca.head_dim % 2 != 0) {
    throw InvalidArgument(concat("spec: 'num_kv_heads' is ", heads, ", 'head_dim' ", cca.head_dim,
                                 ": compressed attention needs an even number ",
                                 "of heads of keys, or one with an even number of columns"));
  }
  for (const char* other : {"qk_norm", "score_term"}) {
    if (!fields.has(other)) continue;
    throw InvalidArgument(concat("spec: '", fields.path(other), "' beside compressed attention"));
  }
  cca.depthwise_width = fields.integer("depthwise_width", 1, kMostCca);
  cca.grouped_width = fields.integer("grouped_width", 1, kMostCca);
}

RopeSpec parse_rope(Fields& fields, int64_t head_dim) {
  RopeSpec rope;
  rope.interleaved = fields.boolean("interleaved", false);
  rope.dims = fields.integer("dims", 2, head_dim, head_dim);
  rope.grid = fields.boolean("grid", false);
  if (rope.grid && rope.dims % 4 != 0) {
    throw InvalidArgument(concat("spec: '", fields.path("dims"), "' is ", rope.dims,
                                 ", expected a multiple of 4 beside 'grid'"));
  }
  if (fields.has("frequencies")) {
    rope.frequencies = fields.positive_numbers("frequencies", rope.dims / (rope.grid ? 4 : 2));
  } else {
    rope.theta = fields.positive_number("theta");
    rope.factor = fields.positive_number("factor", 1.0f);
  }
  rope.attention_factor = fields.positive_number("attention_factor", 1.0f);
  fields.done();
  if (rope.attention_factor != 1.0f && rope.dims != head_dim) {
    throw InvalidArgument(concat("spec: '", fields.path("attention_factor"), "' is ",
                                 rope.attention_factor, ", but only ", rope.dims, " of ", head_dim,
                                 " columns are rotated"));
  }
  if (rope.dims % 2 != 0) {
    throw InvalidArgument(
        concat("spec: '", fields.path("dims"), "' is ", rope.dims, ", expected an even number"));
  }
  return rope;
}

ScoreTermSpec parse_score_term(Fields fields, const AttentionSpec& attention) {
  ScoreTermSpec term;
  term.kind = fields.choice<ScoreTermKind>("kind", {{"alibi", ScoreTermKind::kAlibi},
                                                    {"bucketed", ScoreTermKind::kBucketed},
                                                    {"disentangled", ScoreTermKind::kDisentangled},
                                                    {"grid", ScoreTermKind::kGrid}});
  if (term.kind == ScoreTermKind::kGrid) {
    term.grid_rows = fields.integer("rows", 1, kMaxGrid);
    term.grid_columns = fields.integer("columns", 1, kMaxGrid);
    term.per_layer = fields.boolean("per_layer", false);
  }
  if (term.kind == ScoreTermKind::kBucketed) {
    term.num_buckets = fields.integer("buckets", 4, kMaxBuckets);
    const int64_t exact = term.num_buckets / (attention.causal ? 2 : 4);
    term.max_distance = fields.integer("max_distance", exact + 1, kMaxRelativeDistance);
    term.per_layer = fields.boolean("per_layer", false);
  }
  if (term.disentangled()) {
    parse_disentangled(fields, term);
    if (attention.num_heads != attention.num_kv_heads) {
      throw InvalidArgument(
          "spec: a disentangled 'attention.score_term' needs 'num_kv_heads' "
          "equal to 'num_heads'");
    }
  }
  fields.done();
  return term;
}

void parse_feed_forward_biases(Fields& fields, FeedForwardSpec& feed_forward) {
  feed_forward.up_bias = fields.boolean("up_bias", true);
  feed_forward.down_bias = fields.boolean("down_bias", true);
}

ConvolutionSpec parse_convolution(Fields fields, int64_t num_layers) {
  ConvolutionSpec convolution;
  convolution.width = fields.integer("width", 1, kMaxConvolution);
  convolution.activation = parse_activation(fields);
  fields.done();
  if (convolution.width % 2 == 0 || num_layers == 0) {
    throw InvalidArgument(concat("spec: '", fields.path("width"), "' is ", convolution.width,
                                 " with ", num_layers,
                                 " layers, expected an odd number and a layer"));
  }
  return convolution;
}

void parse_residual_scales(Fields& fields, StackSpec& stack) {
  stack.residual_scales = fields.boolean("residual_scales", false);
  if (stack.residual_scales && stack.norm_placement != NormPlacement::kPre) {
    throw InvalidArgument(
        concat("spec: '", fields.path("residual_scales"), "' needs 'norm.placement' \"pre\""));
  }
}

void check_moe_placement(const StackSpec& stack) {
  if (stack.norm_placement == NormPlacement::kPre) return;
  throw InvalidArgument("spec: a mixture of experts needs 'norm.placement' \"pre\"");
}

}  // namespace packhorse
