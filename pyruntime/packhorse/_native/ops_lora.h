// The operator of adapters, as Python calls it: arrays on the host alone.
#pragma once

#include <cstdint>
#include <optional>

#include "packhorse/_native/ops_call.h"

namespace packhorse {

/// out [n, out_features] with what adapters add to it. Numbers are within their ranges.
inline py::object add_lora(Call& call, Ops& ops, const Floats& out, const Floats& x,
                           const Floats& a, const Floats& b, const IntArray& slots,
                           const IntArray& ranks, const std::optional<IntArray>& parts,
                           int num_parts) {
  LoraArgs args;
  args.x = call.put("x", x);
  args.layer.a = call.put("a", a);
  args.layer.b = call.put("b", b);
  args.layer.num_parts = num_parts;
  args.layer.max_rank = static_cast<int32_t>(args.layer.b.rows() / ranks.size());
  args.layer.ranks = call.put_ints(ranks);
  if (parts) args.layer.parts = call.put_ints(*parts);
  args.slots = call.put_ints(slots);
  args.out = call.put("out", out);
  const int64_t numbers = args.x.rows() * args.layer.workspace_columns();
  args.workspace = static_cast<float*>(call.allocate(size_t(numbers) * sizeof(float)));
  ops.add_lora(args);
  return call.get(args.out);
}

}  // namespace packhorse
