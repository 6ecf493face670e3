// The stack of layers, written once in terms of operators.
#pragma once

#include "model/batch.h"
#include "model/layers/key_source.h"
#include "model/layers/stack_buffers.h"
#include "model/layers/stack_weights.h"
#include "model/loading/adapters.h"
#include "model/spec/spec.h"
#include "ops/ops.h"

namespace packhorse {

/// Runs batches through the layers.
class Stack {
 public:
  /// The arguments must outlive this object. `adapters`: those of the batch that is run, or null.
  Stack(const StackSpec& spec, const StackWeights& weights, const LayerBuffers& buffers, Ops& ops,
        const AdapterBatch* adapters = nullptr)
      : spec_(spec), weights_(weights), buffers_(buffers), ops_(ops), adapters_(adapters) {}

  /// Replaces the embeddings in the first T rows of `hidden` by the last hidden state.
  /// `before_layer`, if not null, is called before each layer and may throw.
  void run(const TokenBatch& tokens, KeySource& keys, void (*before_layer)() = nullptr) const;

 private:
  void rotate(const TokenBatch& tokens, const float* frequencies, const TensorView& out) const;
  void quantize(const NormWeight& norm, const BatchView& batch) const;
  TensorView block_input(const NormWeight& norm, const BatchView& batch) const;
  template <class Args>
  void set_norm(Args& args, const NormWeight& norm, bool read) const;
  void attend(const LayerWeights& layer, size_t index, const BatchView& batch,
              KeySource& keys) const;
  void qkv_rope(const LayerWeights& layer, size_t index, const AttentionArgs& attention) const;
  bool rotates(size_t index) const;
  template <class Args>
  void set_rotation(Args& args, size_t index, const BatchView& batch) const;
  void compress_heads(const LayerWeights& layer, size_t index, const BatchView& batch,
                      KeySource& keys) const;
  void add_attention(const LayerWeights& layer, size_t index, const BatchView& batch) const;
  TensorView feed_forward_input(const LayerWeights& layer, const BatchView& batch) const;
  void add_feed_forward(const LayerWeights& layer, size_t index, const TensorView& input,
                        const BatchView& batch) const;
  bool adapts(LoraTarget target) const;
  LoraArgs lora_of(LoraTarget target, size_t index, const TensorView& x, const TensorView& out,
                   const int32_t* row_count) const;
  void run_linear(LoraTarget target, size_t index, const LinearArgs& args) const;
  void run_adapted_feed_forward(size_t index, const FeedForwardArgs& args) const;
  void add_normed(const NormWeight& norm, const BatchView& batch) const;
  void add_scaled(const ResidualScales& scales, const BatchView& batch) const;
  void convolve(const BatchView& batch) const;

  const StackSpec& spec_;
  const StackWeights& weights_;
  const LayerBuffers& buffers_;
  Ops& ops_;
  const AdapterBatch* adapters_;
};

}  // namespace packhorse
