// Where the parts of a layer's dense layers lie, in the source and as they are stored.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/loading/layer_packer.h"
#include "model/spec/spec.h"

namespace packhorse {

/// A dense layer of the stack, as LayerPacker::linear takes it.
struct DenseLayout {
  std::string name;
  std::vector<Part> parts;
  int64_t out_features = 0;  // as stored
  Spread columns;            // of the source
  int64_t in_features = 0;   // as stored
  std::vector<FusedTensor> fused = {};
};

/// The first column of the values, as stored, that comes from the token before where attention is
/// compressed.
inline int64_t delayed_column(const AttentionSpec& spec, int64_t head_dim) {
  return spec.num_kv_heads == 1 ? spec.head_dim / 2 : spec.num_kv_heads / 2 * head_dim;
}

/// The layouts of all dense layers of a stack on one backend. Arguments outlive the object.
class StackLayouts {
 public:
  StackLayouts(const Spec& spec, const LayerPacker& packer);

  int64_t width() const { return width_; }        // of hidden states, as stored
  int64_t head_dim() const { return head_dim_; }  // as stored, padded
  /// The rows or columns of `count` heads of the source, placed after `before` other heads.
  Spread heads(int64_t count, int64_t before, int64_t paired = 0) const;
  /// Spread::paired of a head of queries or keys.
  int64_t paired_columns() const;

  // Of the layer of weights with this index.
  DenseLayout qkv(int64_t index) const;
  DenseLayout output(int64_t index) const;
  DenseLayout up(int64_t index) const;  // includes the gate if the spec has one
  DenseLayout down(int64_t index) const;
  // Likewise of one expert of a mixture.
  DenseLayout expert_up(int64_t index, int64_t expert) const;
  DenseLayout expert_down(int64_t index, int64_t expert) const;

 private:
  int64_t padded_inner() const;  // columns between the two layers of a feed-forward block

  const Spec& spec_;
  const AttentionSpec& attention_;
  const LayerPacker& packer_;
  const int64_t width_;
  const int64_t head_dim_;
};

}  // namespace packhorse
