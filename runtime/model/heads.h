// What is made of the last hidden state: embeddings, the pooler head, the classifier.
#pragma once

#include "model/encoder.h"

namespace packhorse {

/// Takes what the pooler and the classifier of the spec need from the arena.
void take_head_buffers(const Spec& spec, const Capacity& capacity, DType dtype, const Ops& ops,
                       Arena& arena, EncoderBuffers& buffers);

/// Pools buffers.hidden as the spec says into buffers.embedding; returns its first B rows.
TensorView embed_sequences(const Spec& spec, const BatchView& batch, const EncoderBuffers& buffers,
                           Ops& ops);

/// The classifier over buffers.hidden, or over buffers.pooled where that is its input; returns
/// [T or B, num_labels] in float32, buffers.logits. `counts`: as EncoderOutputs::write, or null.
/// The spec must have a classifier.
TensorView classify(const Spec& spec, const ModelWeights& weights, const BatchView& batch,
                    const int32_t* counts, const EncoderBuffers& buffers, Ops& ops);

/// The pooler head over each sequence's first token; returns [B, E] in the model's dtype. The spec
/// must have a pooler.
TensorView pool_first_tokens(const Spec& spec, const ModelWeights& weights, const BatchView& batch,
                             const EncoderBuffers& buffers, Ops& ops);

}  // namespace packhorse
