// What is made of the last hidden state: embeddings, the pooler, the classifier, vectors and
// weights of tokens, and what a masked language model says about the vocabulary.
#pragma once

#include "model/encoder.h"
#include "model/output_layouts.h"

namespace packhorse {

/// Takes what the heads of the spec need from the arena, buffers.outputs among it.
void take_head_buffers(const Spec& spec, const Capacity& capacity, DType dtype, const Ops& ops,
                       Arena& arena, EncoderBuffers& buffers);

/// The heads over buffers.hidden of one batch, whose numbers are exact. Each writes the first rows
/// of `out`, in the dtype of its output; the spec must have it. Rows of empty sequences are zeros.
class Heads {
 public:
  /// `counts`: {T, B} on the device, zeros for a batch refused there, whose rows are zeros then; or
  /// null. The arguments outlive the object.
  Heads(const Spec& spec, const ModelWeights& weights, const EncoderInputs& inputs,
        const int32_t* counts, const EncoderBuffers& buffers, Ops& ops)
      : spec_(spec),
        weights_(weights),
        inputs_(inputs),
        batch_(inputs.batch),
        counts_(counts),
        buffers_(buffers),
        ops_(ops) {}

  void embedding(const TensorView& out) const;
  void pooled(const TensorView& out) const;
  /// `pooled`: what the call above has written, where that is the classifier's input.
  void logits(const TensorView& pooled, const TensorView& out) const;
  void token_weights(const TensorView& out) const;
  void vectors(const TensorView& out) const;
  void sparse(const TensorView& out) const;
  void predictions(const TensorView& out) const;

 private:
  TensorView hidden() const { return buffers_.hidden.first_rows(batch_.num_tokens); }
  TensorView pool(Pooling pooling) const;
  void pool(Pooling pooling, const TensorView& out, bool normalize = false) const;
  void pool_all(const TensorView& out) const;
  TensorView masked_lm_dense(const TensorView& x) const;
  void dense(const TensorView& x, const LinearWeight& weight, const TensorView& out,
             Activation activation = Activation::kNone, const NormWeight& norm = {},
             const TensorView& residual = {}) const;
  // What the last of several layers gives; `buffers` have a row at least for each of x.
  TensorView dense_layers(TensorView x, const std::vector<DenseSpec>& layers,
                          const std::vector<DenseWeights>& weights,
                          const std::vector<TensorView>& buffers) const;
  void finish(const TensorView& padded, const TensorView& out, bool normalize,
              bool per_token) const;
  // One dense layer of each row, into float32 of as many columns as `out` has.
  void project(const TensorView& x, const LinearWeight& weight, const TensorView& padded,
               const TensorView& out, Activation activation, bool normalize, bool per_token) const;
  void clear_empty(const TensorView& rows) const;

  const Spec& spec_;
  const ModelWeights& weights_;
  const EncoderInputs& inputs_;
  const BatchView& batch_;
  const int32_t* counts_;
  const EncoderBuffers& buffers_;
  Ops& ops_;
};

}  // namespace packhorse
