// Attention over the last hidden state of another stack, that of sources: context =
// attention(query(x), keys and values of the source), and output(context). Keys and values of a
// source are computed once, and lie in pages of the cache from then on.
#pragma once

#include <span>

#include "core/arena.h"
#include "model/batch.h"
#include "model/loading/layer_packer.h"
#include "model/spec/spec.h"
#include "ops/ops.h"

namespace packhorse {

struct AdapterBatch;
struct Block;
struct LayerBuffers;
struct StackLoad;
struct StackRun;
struct StackWeights;

struct CrossAttentionWeights {
  LinearWeight query;      // [num_heads * head_dim, E]
  LinearWeight key_value;  // [2 num_kv_heads * head_dim, hidden size of the other stack]
  LinearWeight output;     // [E, num_heads * head_dim]
};

/// T is max_tokens.
struct CrossAttentionBuffers {
  TensorView query;    // [T, H d]
  TensorView context;  // [T, H d]
  void* workspace = nullptr;
  void* linear_workspace = nullptr;  // for the dense layers before and after attention
};

/// Buffers of write_source, which no layer runs beside.
struct SourceKeyBuffers {
  TensorView key_value;  // [T, 2 Hkv d]
  void* workspace = nullptr;
  float* adapted_ranks = nullptr;  // LoraArgs::workspace, where there may be adapters
};

// Layouts of the dense layers in set `set` of weights. `source`: the other stack.
DenseLayout cross_query_layout(const StackSpec& stack, const CrossAttentionSpec& spec,
                               const LayerPacker& packer, int64_t set);
DenseLayout cross_key_value_layout(const StackSpec& stack, const StackSpec& source,
                                   const CrossAttentionSpec& spec, const LayerPacker& packer,
                                   int64_t set);
DenseLayout cross_output_layout(const StackSpec& stack, const CrossAttentionSpec& spec,
                                const LayerPacker& packer, int64_t set);

CrossAttentionWeights build_cross_attention(const StackLoad& load, const CrossAttentionSpec& spec,
                                            int64_t set);

/// Takes the buffers for the blocks of all layers.
void take_cross_attention(const StackSpec& spec, const StackWeights& weights,
                          const Capacity& capacity, const Ops& ops, Arena& arena,
                          LayerBuffers& buffers);
SourceKeyBuffers take_source_keys(const StackWeights& weights, const Capacity& capacity,
                                  DType dtype, const Ops& ops, Arena& arena);

/// Writes keys and values of whole sources to their pages: of `hidden` [T, S], which the other
/// stack has computed for `batch`, those of every layer of `stack` to the pages of `layers`.
/// `adapters`: of `stack`, for the rows of `hidden`; or null.
void write_source(const StackSpec& stack, const StackWeights& weights,
                  const SourceKeyBuffers& buffers, const TensorView& hidden, const BatchView& batch,
                  std::span<const PagedKvCache> layers, const AdapterBatch* adapters, Ops& ops);

/// Computes the context of the batch's tokens from the input of the block.
void compute(const StackRun& run, const Block& block, const CrossAttentionWeights& weights);
/// Adds output(context) to the hidden state, as blocks of self-attention do.
void add(const StackRun& run, const Block& block, const CrossAttentionWeights& weights);

}  // namespace packhorse
