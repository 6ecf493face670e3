#include "model/stem/tokens.h"

namespace packhorse {
namespace {

LinearArgs projection_of(const StemWeights& weights, const StemBuffers& buffers, int64_t rows) {
  LinearArgs args;
  args.x = buffers.embedded.first_rows(rows);
  args.weight = *weights.projection;
  args.workspace = buffers.workspace;
  return args;
}

}  // namespace

StemWeights build_stem(const Spec& spec, const StackSpec& stack, const StemWeights* source,
                       LayerPacker& packer) {
  const StemSpec& stem = stack.stem;
  const int64_t width = stem.embedding_size;
  StemWeights weights;
  weights.dtype = packer.precision().floats();
  const std::string name = stack.prefix + "embeddings.";
  if (stem.kind == StemKind::kPatches) {
    weights.patches = build_patches(stack, name, packer);
    weights.features = stem.patches.features;
    if (stem.norm) weights.norm = packer.norm(name + "norm", stack.hidden_size);
    return weights;
  }
  if (stem.kind == StemKind::kAudio) {
    weights.audio = build_audio(stack, name, packer);
    weights.features = stem.audio.features;
    if (stem.norm) weights.norm = packer.norm(name + "norm", stack.hidden_size);
    return weights;
  }
  const std::string words = name + "word";
  const bool as_stored = packer.backend().ops->embeds_stored_rows();
  const DType floats = packer.precision().weights();
  const DType narrow = floats == DType::kFloat32 ? stem.table_dtype.value_or(floats) : floats;
  if (source != nullptr && stem.shared_words) {
    weights.word_table = source->word_table;
    weights.packed_words = source->packed_words;
  } else if (spec.quantized.contains(words) && as_stored) {
    weights.packed_words =
        packer.padded_dense(words, stem.vocab_size, width, false, packer.precision().rest, words);
  } else if (as_stored && is_widened(narrow, weights.dtype)) {
    weights.word_table = packer.table(words, stem.vocab_size, width, narrow);
  } else {
    weights.word_table = packer.table(words, stem.vocab_size, width, stem.embedding_scale);
  }
  if (stem.rows.features > 0) {
    weights.rows = PatchWeights{
        .projection = packer.dense(name + "rows", width, stem.rows.features, stem.rows.bias),
        .prefix = {},
        .positions = {}};
    weights.features = stem.rows.features;
  }
  if (stem.position_kind == PositionKind::kLearned) {
    weights.position_table =
        packer.table(name + "position", stem.num_positions,
                     stem.positions_after_projection ? stack.hidden_size : width);
  }
  if (stem.type_vocab_size > 0) {
    weights.type_table = packer.table(name + "type", stem.type_vocab_size, width);
  }
  if (stem.norm) weights.norm = packer.norm(name + "norm", width);
  if (stem.projection) {
    weights.projection =
        packer.dense(name + "projection", stack.hidden_size, width, stem.projection_bias);
  }
  return weights;
}

StemBuffers take_stem_buffers(const StemWeights& weights, const Capacity& capacity, const Ops& ops,
                              Arena& arena) {
  StemBuffers buffers;
  if (weights.patches || weights.rows) {
    buffers.patches = take_patch_buffers(weights.patches ? *weights.patches : *weights.rows,
                                         weights.features, weights.dtype, capacity, ops, arena);
  }
  if (weights.audio) {
    buffers.audio =
        take_audio_buffers(*weights.audio, weights.features, weights.dtype, capacity, ops, arena);
  }
  if (!weights.projection) return buffers;
  buffers.embedded =
      arena.take_matrix("embedded", capacity.max_tokens, weights.columns(), weights.dtype);
  buffers.workspace =
      arena.take("embedding_workspace",
                 ops.linear_workspace(projection_of(weights, buffers, capacity.max_tokens)));
  return buffers;
}

void embed(const StemSpec& spec, const StemWeights& weights, const StemBuffers& buffers,
           const TokenBatch& tokens, const TensorView& hidden, Ops& ops) {
  if (weights.patches) {
    return embed_patches(spec.patches, *weights.patches, weights.norm, buffers.patches, tokens,
                         hidden, ops);
  }
  if (weights.audio) {
    return embed_audio(spec.audio, *weights.audio, weights.norm, buffers.audio, tokens, hidden,
                       ops);
  }
  const int64_t rows = tokens.batch.num_tokens;
  EmbedArgs args;
  args.ids = tokens.ids;
  args.type_ids = tokens.type_ids;
  args.position_ids = tokens.position_ids;
  args.word = weights.word_table;
  if (weights.packed_words) args.packed_word = *weights.packed_words;
  args.word_scale = spec.embedding_scale;
  if (tokens.row_numbers != nullptr) {
    args.rows = project_patches(*weights.rows, buffers.patches, tokens.features, nullptr, ops);
    args.row_numbers = tokens.row_numbers;
  }
  if (!spec.positions_after_projection) args.position = weights.position_table;
  args.type = weights.type_table;
  args.position_offset = spec.position_offset;
  args.skipped_id = spec.padding_id;
  args.norm = weights.norm;
  args.batch = tokens.batch;
  args.out = weights.projection ? buffers.embedded.first_rows(rows) : hidden.first_rows(rows);
  ops.embed(args);
  if (!weights.projection) return;
  LinearArgs projection = projection_of(weights, buffers, rows);
  projection.out = hidden.first_rows(rows);
  projection.row_count = tokens.batch.counts;
  ops.linear(projection);
  if (!spec.positions_after_projection) return;
  EmbedArgs positions;
  positions.position_ids = tokens.position_ids;
  positions.word = projection.out;
  positions.position = weights.position_table;
  positions.position_offset = spec.position_offset;
  positions.batch = tokens.batch;
  positions.out = projection.out;
  ops.embed(positions);
}

}  // namespace packhorse
