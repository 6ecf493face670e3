// The state that all heads share: a batch whose last hidden state is computed, and the memory in
// which a head computes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/arena.h"
#include "model/batch.h"
#include "model/heads/output_layout.h"
#include "ops/ops.h"

namespace packhorse {

/// Takes the buffers of heads from the arena, both when the arena only counts memory and when it
/// carves it.
struct HeadArena {
  Arena& arena;
  const Ops& ops;
  Capacity capacity;
  DType dtype;  // dtype in which heads compute

  TensorView matrix(const std::string& name, int64_t rows, int64_t columns) const;
  /// Bytes of scratch that a dense layer needs for `rows` rows.
  size_t workspace_of(int64_t rows, const LinearWeight& weight) const;
  /// Returns null if `bytes` is 0.
  void* workspace(const std::string& name, size_t bytes) const;
};

/// The buffers in which a head computes. Those that it does not need are empty.
struct HeadScratch {
  TensorView input = {};   // input of its first layer, unless that is `hidden`
  TensorView dense = {};   // output of its first layer, if another layer follows
  TensorView padded = {};  // output of its last layer, with padded columns
  void* workspace = nullptr;
};

/// One batch for the heads. The numbers in `tokens` are exact.
struct HeadRun {
  TokenBatch tokens;
  /// {T, B} on the device, or null. They are zeros if a kernel found wrong offsets in the batch;
  /// all outputs are then zeros.
  const int32_t* counts;
  TensorView hidden;  // [T, E]; E as stored
  Ops& ops;

  /// out = norm(residual + activation(x W^T + bias))
  void dense(const TensorView& x, const LinearWeight& weight, const TensorView& out,
             void* workspace, Activation activation = Activation::kNone,
             const NormWeight& norm = {}, const TensorView& residual = {}) const;
  /// Pools the first columns of `hidden` into `out`, where rows of empty sequences become zeros.
  /// `skipped_id`: as PoolArgs::skipped_id.
  void pool(Pooling pooling, const TensorView& out, bool normalize = false,
            int32_t skipped_id = -1) const;
  /// Writes the results of all poolings side by side.
  void pool_all(const std::vector<Pooling>& poolings, const TensorView& out) const;
  /// Writes the first columns of `x` to the output `out`, converted to its dtype. `x` may be the
  /// same memory as `out`; it may be overwritten. Rows of empty sequences become zeros, as do all
  /// rows if `counts` is zeros.
  void finish(const TensorView& x, const TensorView& out, OutputRows per,
              bool normalize = false) const;
};

}  // namespace packhorse
