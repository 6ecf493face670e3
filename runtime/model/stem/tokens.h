// The stem makes the input of the first layer from rows of tables, one row of each table for each
// token, from patches of images, or from frames of audio.
#pragma once

#include <optional>

#include "core/arena.h"
#include "model/batch.h"
#include "model/loading/layer_packer.h"
#include "model/spec/spec.h"
#include "model/stem/audio.h"
#include "model/stem/patches.h"
#include "ops/ops.h"

namespace packhorse {

struct StemWeights {
  std::optional<PatchWeights> patches;  // in place of all tables, where the stem takes patches
  std::optional<AudioWeights> audio;    // or frames of audio
  std::optional<PatchWeights> rows;     // see RowsSpec; without prefix and positions
  int64_t features = 0;                 // elements of a patch, a given row or a frame
  TensorView word_table;
  std::optional<LinearWeight> packed_words;  // in place of word_table: a table in groups
  TensorView position_table;
  TensorView type_table;
  NormWeight norm;
  std::optional<LinearWeight> projection;
  DType dtype = DType::kFloat32;  // dtype of activations

  /// The width of the tables as stored.
  int64_t columns() const {
    return packed_words ? packed_words->in_features : word_table.columns();
  }
};

/// The buffers of the stem, which are empty if it has no projection.
struct StemBuffers {
  PatchBuffers patches;  // for patches, or for given rows
  AudioBuffers audio;
  TensorView embedded;  // [T, embedding_size]
  void* workspace = nullptr;
};

/// `source`: the stem of the stack of sources, whose table of words this one may share; or null.
StemWeights build_stem(const Spec& spec, const StackSpec& stack, const StemWeights* source,
                       LayerPacker& packer);
StemBuffers take_stem_buffers(const StemWeights& weights, const Capacity& capacity, const Ops& ops,
                              Arena& arena);

/// hidden = norm(word + position + type) where the stem takes tokens, projected to the hidden size
/// if the tables have another width; the position may be added after that. Given rows, after their
/// dense layer, stand in place of some rows of words. Writes the first T rows of `hidden`.
void embed(const StemSpec& spec, const StemWeights& weights, const StemBuffers& buffers,
           const TokenBatch& tokens, const TensorView& hidden, Ops& ops);

}  // namespace packhorse
