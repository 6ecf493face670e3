// The encoder, written once over the ops boundary: embeddings and layers.
#pragma once

#include <cstdint>

#include "core/arena.h"
#include "model/output_layouts.h"
#include "model/spec.h"
#include "model/weights.h"
#include "ops/ops.h"

namespace packhorse {

/// Where each input of a batch lies in one buffer of int32: one copy takes them to the device.
struct InputLayout {
  explicit InputLayout(const Capacity& capacity);
  int64_t counts;           // [2] {T, B}
  int64_t reported;         // [1] LoadBatchArgs::reported; 0 in what comes from the host
  int64_t cu_seqlens;       // [max_sequences + 1]
  int64_t prediction_rows;  // [max_predictions]
  int64_t ids;              // [max_tokens]
  int64_t type_ids;         // [max_tokens]
  int64_t position_ids;     // [max_tokens]
  int64_t size;
};

/// Where a batch lives on the device during a run. T = max_tokens, B = max_sequences, M =
/// max_predictions, E = hidden size. Buffers whose lifetimes are apart share bytes; those that a
/// spec has no use for are empty.
struct EncoderBuffers {
  int32_t* inputs = nullptr;  // as InputLayout says
  TensorView hidden;          // [T, E]
  TensorView normed;          // [T, E] what a pre-norm block computes from
  TensorView rotation;        // [T, Ops::rotation_columns] float32
  TensorView local_rotation;  // likewise, of layers with a window
  TensorView embedded;        // [T, embedding_size]; before the first layer
  void* embedding_workspace = nullptr;
  TensorView neighbours;  // [T, width E] input of the convolution; until the first layer is done
  void* convolution_workspace = nullptr;
  TensorView qkv;      // [T, (H + 2 Hkv) d]; used inside attention blocks
  TensorView context;  // [T, H d]; likewise
  void* attention_workspace = nullptr;
  void* output_workspace = nullptr;        // of the linear layer after attention
  void* feed_forward_workspace = nullptr;  // used inside feed-forward blocks
  // After the last layer. Columns that were padded_... are those of padded_features.
  OutputBuffers outputs;                    // `hidden` is the one above
  TensorView head_input;                    // [B, E] pooled tokens, for what is made of them
  TensorView embedding_input;               // [B, pooled_columns], for layers after pooling
  std::vector<TensorView> embedding_dense;  // [B, padded size] of each of them
  TensorView classifier_dense;              // [T or B, E], as the classifier is of
  TensorView padded_logits;                 // [T or B, padded num_labels]
  TensorView padded_token_weights;          // [T, padded 1]
  std::vector<TensorView> vectors_dense;    // [T, padded size] of each layer
  TensorView masked_lm_dense;               // [T, or M without `sparse`, embedding_size]
  TensorView prediction_input;              // [M, E]
  TensorView padded_predictions;            // [M, padded vocab_size]
  void* sparse_workspace = nullptr;
  TensorView as_float32;           // [max(T, B), E] float32, in 16-bit models
  void* head_workspace = nullptr;  // of the linear layers of heads
};

/// Uninitialised, from the arena.
TensorView take_matrix(Arena& arena, const char* name, int64_t rows, int64_t columns, DType dtype);

/// Takes the buffers from the arena (count pass and carve pass alike).
EncoderBuffers take_buffers(const Spec& spec, const Capacity& capacity, DType model_dtype,
                            const Ops& ops, Arena& arena);

/// A batch on the device; type_ids and position_ids are null where it brings none.
struct EncoderInputs {
  BatchView batch;
  const int32_t* ids = nullptr;
  const int32_t* type_ids = nullptr;
  const int32_t* position_ids = nullptr;
  const int32_t* prediction_rows = nullptr;  // [num_predictions]
  int64_t num_predictions = 0;
};

/// Fills the first T rows of buffers.hidden with the last hidden state of the batch.
void encode(const Spec& spec, const ModelWeights& weights, const EncoderInputs& inputs,
            const EncoderBuffers& buffers, Ops& ops);

}  // namespace packhorse
