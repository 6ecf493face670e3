// Parses the stem of a stack, and the form of its norms.
#include "model/spec/parse.h"
#include "packhorse/error.h"

namespace packhorse {

void parse_tables(Fields& fields, int64_t hidden_size, StemSpec& stem) {
  stem.vocab_size = fields.integer("vocab_size", 1, kMaxRows);
  stem.projection = fields.has("embedding_size");
  stem.embedding_size = fields.integer("embedding_size", 1, kMaxHidden, hidden_size);
  if (stem.projection) stem.projection_bias = fields.boolean("embedding_bias", true);
  if (fields.has("table_dtype")) {
    stem.table_dtype = fields.choice<DType>(
        "table_dtype", {{"float16", DType::kFloat16}, {"bfloat16", DType::kBFloat16}});
  }
  stem.embedding_scale = fields.positive_number("embedding_scale", 1.0f);
  stem.type_vocab_size = fields.integer("type_vocab_size", 0, kMaxRows, 0);
}

void parse_rows(Fields fields, StemSpec& stem) {
  if (stem.projection || stem.type_vocab_size > 0) {
    throw InvalidArgument(concat("spec: '", fields.path("features"), "' beside '",
                                 stem.projection ? "embedding_size" : "type_vocab_size", "'"));
  }
  stem.rows.features = fields.integer("features", 1, kMaxHidden);
  stem.rows.bias = fields.boolean("bias", true);
  stem.rows.id = static_cast<int32_t>(fields.integer("id", 0, stem.vocab_size - 1));
  fields.done();
}

void parse_positions(Fields& fields, Fields& top, StemSpec& stem, int64_t& max_seqlen) {
  Fields positions = fields.object("positions");
  stem.position_kind = positions.choice<PositionKind>(
      "kind", {{"learned", PositionKind::kLearned}, {"none", PositionKind::kNone}});
  if (stem.position_kind == PositionKind::kNone) {
    positions.done();
    max_seqlen = top.integer("max_seqlen", 1, kMaxRows);
    stem.num_positions = max_seqlen;
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
    throw InvalidArgument(concat("spec: '", positions.path("padding_id"), "' beside '",
                                 positions.path("after_projection"), "'"));
  }
  positions.done();
  const int64_t left = stem.num_positions - stem.position_offset;
  if (left <= 0) {
    throw InvalidArgument(concat("spec: '", positions.path("offset"), "' ", stem.position_offset,
                                 " leaves none of the ", stem.num_positions, " positions"));
  }
  max_seqlen = top.integer("max_seqlen", 1, kMaxRows, left);
  if (max_seqlen > left) {
    throw InvalidArgument(concat("spec: 'max_seqlen' is ", max_seqlen, ", the position table ",
                                 "serves at most ", left));
  }
}

void parse_patches(Fields& fields, Fields& top, StackSpec& stack) {
  StemSpec& stem = stack.stem;
  PatchesSpec& patches = stem.patches;
  stem.embedding_size = stack.hidden_size;
  stem.position_kind = PositionKind::kNone;
  patches.features = fields.integer("features", 1, kMaxHidden);
  patches.prefix = fields.integer("prefix", 0, kMaxPrefix, 0);
  patches.bias = fields.boolean("bias", true);
  Fields positions = fields.object("positions");
  const bool learned = positions.choice<bool>("kind", {{"grid", true}, {"none", false}});
  if (learned) {
    patches.grid_rows = positions.integer("rows", 1, kMaxGrid);
    patches.grid_columns = positions.integer("columns", 1, kMaxGrid);
    patches.resize =
        positions.choice<GridResize>("resize", {{"linear", GridResize::kLinear},
                                                {"cubic", GridResize::kCubic},
                                                {"linear_antialias", GridResize::kLinearAntialias},
                                                {"cubic_antialias", GridResize::kCubicAntialias}});
  }
  positions.done();
  stack.max_seqlen = top.integer("max_seqlen", 1, kMaxRows);
}

void parse_audio(Fields& fields, Fields& top, StackSpec& stack) {
  StemSpec& stem = stack.stem;
  stem.embedding_size = stack.hidden_size;
  stem.audio.features = fields.integer("features", 1, kMaxHidden);
  stem.audio.activation = parse_activation(fields);
  parse_positions(fields, top, stem, stack.max_seqlen);
  if (stem.position_kind != PositionKind::kLearned || stem.position_offset > 0) {
    throw InvalidArgument(concat("spec: '", fields.path("positions"),
                                 "' of a stem of audio are learned ones without an offset"));
  }
}

void parse_norm(Fields& fields, StackSpec& stack) {
  stack.norm.kind =
      fields.choice<NormKind>("kind", {{"layer", NormKind::kLayer}, {"rms", NormKind::kRms}});
  stack.norm_placement =
      fields.choice<NormPlacement>("placement", {{"post", NormPlacement::kPost},
                                                 {"pre", NormPlacement::kPre},
                                                 {"both", NormPlacement::kBoth},
                                                 {"parallel", NormPlacement::kParallel}});
  if (stack.pre_norm()) stack.final_norm = fields.boolean("final", true);
  stack.norm.eps = fields.positive_number("eps");
  stack.norm.bias = fields.boolean("bias", stack.norm.kind == NormKind::kLayer);
  stack.norm.gamma_offset = fields.number("gamma_offset", 0.0f);
}

}  // namespace packhorse
