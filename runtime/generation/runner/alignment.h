// Weights of cross attention, handed out while a step runs.
#pragma once

#include <cstddef>
#include <span>

#include "generation/runner/step_runner.h"
#include "model/layers/key_source.h"
#include "ops/device_context.h"
#include "ops/ops.h"

namespace packhorse {

/// True if a sequence of the step has SliceAlignment::rows.
bool wants_alignment(const Step& step);

/// Keys and values of sources in pages. Before a layer attends to them, the weights that the step
/// wants of its heads are computed, and waited for: a buffer of rows at a time.
class AlignedKeys final : public KeySource {
 public:
  /// `layers`: the cache of each layer. `buffer`: [rows, longest source] float32 on the device. The
  /// arguments outlive the object.
  AlignedKeys(std::span<const PagedKvCache> layers, const Step& step, const TensorView& buffer,
              DeviceContext& device, Ops& ops)
      : layers_(layers), step_(step), buffer_(buffer), device_(device), ops_(ops) {}

  Keys keys(size_t layer, const Keys& own) override {
    return {.k = own.k, .v = own.v, .batch = {}, .pages = layers_[layer]};
  }
  void before_attention(size_t layer, const AttentionArgs& args) override;

 private:
  /// Writes the weights of a head of sequence `sequence`, whose first row of args.q is `first`.
  void write(const AttentionArgs& args, int64_t sequence, int64_t first, size_t head);

  std::span<const PagedKvCache> layers_;
  const Step& step_;
  const TensorView& buffer_;
  DeviceContext& device_;
  Ops& ops_;
};

}  // namespace packhorse
