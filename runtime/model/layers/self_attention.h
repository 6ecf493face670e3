// Attention over the tokens of a stack itself: context = attention(qkv(x)), and output(context).
#pragma once

#include "core/arena.h"
#include "model/batch.h"
#include "model/loading/layer_packer.h"
#include "model/spec/spec.h"
#include "ops/args/attention.h"
#include "ops/args/dense.h"
#include "ops/ops.h"

namespace packhorse {

struct Block;
struct LayerBuffers;
struct StackLoad;
struct StackRun;
struct StackWeights;

struct SelfAttentionWeights {
  /// Query, key and value in one layer: [(num_heads + 2 num_kv_heads) head_dim, E].
  LinearWeight qkv;
  LinearWeight output;       // [E, num_heads * head_dim]
  NormWeight query_norm;     // norm of each query head, if the spec has qk_norm
  NormWeight key_norm;       // norm of each key head, likewise
  TensorView position_keys;  // [num_relative, H d], computed at load for disentangled attention
  TensorView position_queries;
  BucketBias bucket_bias;   // where ScoreTermSpec::per_layer
  float context_scale = 0;  // AttentionArgs::out_scale, where `output` is kFloat8
};

/// T is max_tokens.
struct SelfAttentionBuffers {
  TensorView qkv;      // [T, (H + 2 Hkv) d]
  TensorView context;  // [T, H d]
  void* workspace = nullptr;
  void* linear_workspace = nullptr;  // for the dense layers before and after attention
};

/// The rows or columns of `count` heads of the source, placed after `before` other heads.
Spread place_heads(const AttentionSpec& spec, const LayerPacker& packer, int64_t count,
                   int64_t before, int64_t paired = 0);
// Layouts of the dense layers in set `set` of weights.
DenseLayout qkv_layout(const StackSpec& stack, const AttentionSpec& spec, const LayerPacker& packer,
                       int64_t set);
DenseLayout attention_output_layout(const StackSpec& stack, const AttentionSpec& spec,
                                    const LayerPacker& packer, int64_t set);

SelfAttentionWeights build_attention(const StackLoad& load, const AttentionSpec& spec, int64_t set,
                                     const DenseLayout& qkv);

/// Takes the buffers for the blocks of all layers, whose heads have the same sizes: that of the
/// heads, and then the others. `max_seqlen`: of the model.
void take_heads(const StackWeights& weights, const Capacity& capacity, Arena& arena,
                LayerBuffers& buffers);
void take_attention(const StackSpec& spec, const StackWeights& weights, const Capacity& capacity,
                    int64_t max_seqlen, const Ops& ops, Arena& arena, LayerBuffers& buffers);

/// The dense layer of queries, keys and values, into `out`. The caller sets `x` and `row_count`.
LinearArgs projection_of(const SelfAttentionWeights& weights, const LayerBuffers& buffers,
                         const TensorView& out);

/// Computes the context of the batch's tokens from the input of the block.
void compute(const StackRun& run, const Block& block, const SelfAttentionWeights& weights);
/// The part of it that follows the heads of queries, keys and values.
void attend(const StackRun& run, const Block& block, const SelfAttentionWeights& weights);
/// Post-norm: hidden = norm(hidden + output(context)); else hidden = hidden + output(context), or
/// hidden + norm(output(context)).
void add(const StackRun& run, const Block& block, const SelfAttentionWeights& weights);

}  // namespace packhorse
