// The operator of compressed convolutional attention, as Python calls it: arrays on the host alone.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "packhorse/_native/ops_call.h"

namespace packhorse {

/// depthwise, its bias, grouped, its bias, temperature, first values.
using ConvolveWeights = std::vector<FloatArray>;
/// Heads, heads of keys, head_dim as stored, that of the model, both widths, the delayed column.
using ConvolveSizes = std::vector<int32_t>;
/// The state of sequences in pages.
struct ConvolvePages {
  FloatArray rows;
  int64_t slots = 0;  // rows of a page
  IntArray table;     // pages of each sequence
  IntArray kv_lens;   // tokens of each sequence so far
};

/// Heads, or heads and the rows of the state. Shapes fit together; `heads` has the rotation.
inline py::object cca(Call& call, Ops& ops, const FloatArray& latents, const Ints& cu_seqlens,
                      const ConvolveWeights& weights, const ConvolveSizes& sizes,
                      const std::optional<ConvolvePages>& pages, const RopeArgs& heads) {
  CcaArgs args;
  args.latents = call.put("latents", Floats(latents));
  args.batch = call.put_batch(cu_seqlens, args.latents.rows());
  args.num_heads = sizes.at(0);
  args.num_kv_heads = sizes.at(1);
  args.head_dim = sizes.at(2);
  args.model_dim = sizes.at(3);
  args.depthwise_width = sizes.at(4);
  args.grouped_width = sizes.at(5);
  args.delayed_column = sizes.at(6);
  args.depthwise = call.put_floats("depthwise", weights.at(0));
  args.depthwise_bias = call.put_floats("depthwise_bias", weights.at(1));
  args.grouped = call.put("grouped", Floats(weights.at(2)));
  args.grouped_bias = call.put_floats("grouped_bias", weights.at(3));
  args.temperature = call.put_floats("temperature", weights.at(4));
  args.first_values = call.put_floats("first_values", weights.at(5));
  args.rotation = heads.rotation;
  args.frequencies = heads.frequencies;
  args.dims = heads.dims;
  if (pages) {
    args.pages.rows = call.put("state", Floats(pages->rows));
    args.pages.slots = pages->slots;
    args.pages.table = call.put_ints(pages->table);
    args.pages.table_stride = pages->table.shape(1);
    args.pages.kv_lens = call.put_ints(pages->kv_lens);
  }
  args.out = call.result(args.latents.rows(), args.latents.columns());
  args.workspace = call.allocate(ops.cca_workspace(args));
  ops.cca(args);
  if (!pages) return call.get(args.out);
  const py::object out = call.get(args.out);
  return py::make_tuple(out, call.get(args.pages.rows));
}

}  // namespace packhorse
