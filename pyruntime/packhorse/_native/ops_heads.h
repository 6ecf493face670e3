// The operators that turn heads, as Python calls them.
#pragma once

#include <cstdint>
#include <optional>

#include "packhorse/_native/ops_call.h"

namespace packhorse {

inline void put_rotation(Call& call, Ops& ops, RopeArgs& heads, const Floats& frequencies,
                         const Ints& cu_seqlens, const std::optional<IntArray>& position_ids,
                         int64_t rows) {
  RotationArgs rotation;
  rotation.dims = static_cast<int32_t>(2 * size_of_vector("frequencies", frequencies));
  rotation.frequencies = call.put_floats("frequencies", frequencies);
  rotation.batch = call.put_batch(cu_seqlens, rows);
  if (position_ids) {
    if (position_ids->ndim() != 1 || position_ids->size() != rows) {
      throw InvalidArgument(concat("position_ids: expected a vector of ", rows));
    }
    rotation.position_ids = call.put_ints(*position_ids);
  }
  rotation.out = call.matrix(rows, ops.rotation_columns(rotation.dims, false), DType::kFloat32);
  ops.rotation(rotation);
  heads.rotation = rotation.out;
  heads.frequencies = rotation.frequencies;
  heads.dims = rotation.dims;
}

// The caller gives the rows of weights, and gets the columns of the result, in the device's order
// (interleaves_heads).
inline py::object qkv_rope(Call& call, Ops& ops, const Floats& x, const Floats& weight,
                           const std::optional<Floats>& bias, const Ints& cu_seqlens,
                           const std::optional<IntArray>& position_ids, int num_heads,
                           int num_kv_heads, int head_dim, const std::optional<Floats>& frequencies,
                           const std::optional<Norm>& q_norm, const std::optional<Norm>& k_norm) {
  LinearArgs args;
  args.x = call.put("x", x);
  args.weight = call.put_linear("weight", {weight, bias});
  args.out = call.result(args.x.rows(), args.weight.out_features);
  call.quantize(args.x, args.x_scales, args.weight);
  args.workspace = call.allocate(ops.linear_workspace(args));
  RopeArgs heads;
  heads.num_heads = num_heads;
  heads.num_kv_heads = num_kv_heads;
  heads.head_dim = heads.model_dim = head_dim;
  heads.q = args.out.column_slice(0, int64_t{num_heads} * head_dim);
  heads.k = args.out.column_slice(heads.q.columns(), int64_t{num_kv_heads} * head_dim);
  heads.q_norm = call.put_norm(q_norm, NormKind::kRms, head_dim);
  heads.k_norm = call.put_norm(k_norm, NormKind::kRms, head_dim);
  if (frequencies) {
    put_rotation(call, ops, heads, *frequencies, cu_seqlens, position_ids, args.x.rows());
  }
  ops.qkv_rope(args, heads);
  return call.get(args.out);
}

// Columns of x and of the result are in the device's order (interleaves_heads).
inline py::object rope(Call& call, Ops& ops, const Floats& x, const Ints& cu_seqlens,
                       const std::optional<IntArray>& position_ids, int num_heads, int head_dim,
                       const Floats& frequencies) {
  RopeArgs args;
  args.q = call.put("x", x);
  args.k = TensorView(nullptr, args.q.dtype, args.q.rows(), 0);
  args.num_heads = num_heads;
  args.head_dim = args.model_dim = head_dim;
  put_rotation(call, ops, args, frequencies, cu_seqlens, position_ids, args.q.rows());
  ops.rope(args);
  return call.get(args.q);
}

}  // namespace packhorse
