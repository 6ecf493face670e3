// The probe head: attention of one learned query over the last hidden state of each sequence, and
// a feed-forward block. SigLIP (Zhai et al., arXiv 2303.15343) makes its embeddings so.
#pragma once

#include "model/heads/head_run.h"
#include "model/loading/layer_packer.h"

namespace packhorse {

struct ProbeWeights {
  const float* query = nullptr;  // [E], projected
  int64_t head_dim = 0;          // as the model has it: hidden sizes may be stored padded
  LinearWeight key;
  LinearWeight value;
  LinearWeight output;
  NormWeight norm;
  LinearWeight up;
  LinearWeight down;
};

struct ProbeBuffers {
  TensorView keys;      // [T, E]
  TensorView values;    // [T, E]
  TensorView attended;  // [B, E], then the norm's output
  TensorView summed;    // [B, E]
  TensorView inner;     // [B, size]
  void* workspace = nullptr;
};

ProbeWeights build_probe(const Spec& spec, LayerPacker& packer);
ProbeBuffers take_probe(const ProbeWeights& weights, const HeadArena& arena);
/// Returns [B, E] in the model's dtype.
TensorView run_probe(const HeadRun& run, const ProbeSpec& spec, const ProbeWeights& weights,
                     const ProbeBuffers& buffers);

}  // namespace packhorse
