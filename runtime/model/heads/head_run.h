// What all heads share: one batch whose last hidden state is there, and the memory of a head.
#pragma once

#include <cstdint>
#include <string>

#include "core/arena.h"
#include "model/batch.h"
#include "model/heads/outputs.h"
#include "ops/ops.h"

namespace packhorse {

/// Takes the buffers of heads from the arena (count pass and carve pass alike).
struct HeadArena {
  Arena& arena;
  const Ops& ops;
  Capacity capacity;
  DType dtype;  // of what heads compute with

  TensorView matrix(const std::string& name, int64_t rows, int64_t columns) const;
  /// Scratch of a dense layer of that many rows.
  size_t workspace_of(int64_t rows, const LinearWeight& weight) const;
  /// Null where `bytes` is 0.
  void* workspace(const std::string& name, size_t bytes) const;
};

/// What a head computes in; those that it has no use for are empty.
struct HeadScratch {
  TensorView input = {};   // what its first layer reads, where that is not the last hidden state
  TensorView dense = {};   // what that layer gives, where there is another
  TensorView padded = {};  // what the last one gives: columns are padded
  void* workspace = nullptr;
};

/// One batch. Its numbers are exact.
struct HeadRun {
  TokenBatch tokens;
  /// {T, B} on the device, zeros for a batch refused there, all of whose outputs are zeros then; or
  /// null.
  const int32_t* counts;
  TensorView hidden;  // [T, E]; E as stored
  Ops& ops;

  /// out = norm(residual + activation(x W^T + bias))
  void dense(const TensorView& x, const LinearWeight& weight, const TensorView& out,
             void* workspace, Activation activation = Activation::kNone,
             const NormWeight& norm = {}, const TensorView& residual = {}) const;
  /// Of the first columns of `hidden`; rows of empty sequences are zeros.
  void pool(Pooling pooling, const TensorView& out, bool normalize = false) const;
  /// The first columns of `x` as the output `out`, in its dtype; `x` may be `out`. Rows of empty
  /// sequences, and of a batch refused on the device, become zeros. `x` is scratch.
  void finish(const TensorView& x, const TensorView& out, OutputRows per,
              bool normalize = false) const;
};

}  // namespace packhorse
