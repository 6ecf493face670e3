// The operator of compressed convolutional attention, as Python calls it: arrays on the host alone.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <tuple>

#include "packhorse/_ops_call.h"

namespace packhorse {

/// depthwise, its bias, grouped, its bias, temperature, first values.
using ConvolveWeights = std::array<FloatArray, 6>;
/// Heads, heads of keys, head_dim as stored, that of the model, both widths, the delayed column.
using ConvolveSizes = std::array<int32_t, 7>;
/// Rows of the state, rows of a page, tables of sequences, and their lengths.
using ConvolvePages = std::tuple<FloatArray, int64_t, IntArray, IntArray>;

/// Heads, or heads and the rows of the state. Shapes fit together; `heads` has the rotation.
inline py::object convolve_heads(Call& call, Ops& ops, const FloatArray& latents,
                                 const Ints& cu_seqlens, const ConvolveWeights& weights,
                                 const ConvolveSizes& sizes,
                                 const std::optional<ConvolvePages>& pages,
                                 const RotateHeadsArgs& heads) {
  ConvolveHeadsArgs args;
  args.latents = call.put("latents", Floats(latents));
  args.batch = call.put_batch(cu_seqlens, args.latents.rows());
  args.num_heads = sizes[0];
  args.num_kv_heads = sizes[1];
  args.head_dim = sizes[2];
  args.model_dim = sizes[3];
  args.depthwise_width = sizes[4];
  args.grouped_width = sizes[5];
  args.delayed_column = sizes[6];
  args.depthwise = call.put_floats("depthwise", weights[0]);
  args.depthwise_bias = call.put_floats("depthwise_bias", weights[1]);
  args.grouped = call.put("grouped", Floats(weights[2]));
  args.grouped_bias = call.put_floats("grouped_bias", weights[3]);
  args.temperature = call.put_floats("temperature", weights[4]);
  args.first_values = call.put_floats("first_values", weights[5]);
  args.rotation = heads.rotation;
  args.frequencies = heads.frequencies;
  args.dims = heads.dims;
  if (pages) {
    const auto& [rows, slots, table, kv_lens] = *pages;
    args.pages.rows = call.put("state", Floats(rows));
    args.pages.slots = slots;
    args.pages.table = call.put_ints(table);
    args.pages.table_stride = table.shape(1);
    args.pages.kv_lens = call.put_ints(kv_lens);
  }
  args.out = call.result(args.latents.rows(), args.latents.columns());
  args.workspace = call.allocate(ops.convolve_heads_workspace(args));
  ops.convolve_heads(args);
  if (!pages) return call.get(args.out);
  const py::object out = call.get(args.out);
  return py::make_tuple(out, call.get(args.pages.rows));
}

}  // namespace packhorse
