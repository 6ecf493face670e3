// The stem of audio makes the input of the first layer from frames: two convolutions, the second of
// which takes every second frame, plus the positions of the rows that it gives (Radford et al.
// 2022, arXiv 2212.04356).
#pragma once

#include "core/arena.h"
#include "model/batch.h"
#include "model/loading/layer_packer.h"
#include "model/spec/spec.h"
#include "ops/ops.h"

namespace packhorse {

struct AudioWeights {
  LinearWeight first;    // [E, kAudioWidth * features]
  LinearWeight second;   // [E, kAudioWidth * E]
  TensorView positions;  // [max_seqlen, E]
};

/// F = kAudioStride * max_tokens frames.
struct AudioBuffers {
  TensorView rounded;   // [F, features as stored], if features are not taken as they are
  TensorView unfolded;  // [F, kAudioWidth * features as stored]
  TensorView frames;    // [F, E]
  TensorView joined;    // [max_tokens, kAudioWidth * E]
  void* workspace = nullptr;
};

/// `name`: beginning of the names of its tensors, such as "encoder.embeddings.".
AudioWeights build_audio(const StackSpec& stack, const std::string& name, LayerPacker& packer);
/// `dtype`: that of activations.
AudioBuffers take_audio_buffers(const AudioWeights& weights, int64_t features, DType dtype,
                                const Capacity& capacity, const Ops& ops, Arena& arena);

/// hidden = norm(convolutions + positions), where there is a norm. Writes the first T rows. Frames
/// are those of TokenBatch::features.
void embed_audio(const AudioSpec& spec, const AudioWeights& weights, const NormWeight& norm,
                 const AudioBuffers& buffers, const TokenBatch& tokens, const TensorView& hidden,
                 Ops& ops);

}  // namespace packhorse
