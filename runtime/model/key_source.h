// Where the attention of a layer takes its keys and values from.
#pragma once

#include <cstddef>
#include <span>

#include "ops/ops.h"

namespace packhorse {

/// Keys and values of tokens, and the offsets of their sequences; or the pages of a cache that
/// holds them, and nothing else.
struct Keys {
  TensorView k;  // [Tk, num_kv_heads * head_dim]
  TensorView v;  // [Tk, num_kv_heads * head_dim]
  BatchView batch;
  KvPages pages = {};
};

class KeySource {
 public:
  virtual ~KeySource() = default;
  /// Returns the keys and values that the batch attends to in layer `layer` of the stack. `own`
  /// holds those that the layer has just computed from the batch itself.
  virtual Keys keys(size_t layer, const Keys& own) = 0;
};

/// Keys and values of the batch itself, so that every sequence attends to its own tokens.
class OwnKeys final : public KeySource {
 public:
  Keys keys(size_t, const Keys& own) override { return own; }
};

/// Keys and values of the batch and of everything before it, in the pages of a cache. Layers add
/// those of the batch before they attend.
class PagedKeys final : public KeySource {
 public:
  /// `layers` holds the cache of each layer of the stack, and outlives the object, as `ops` does.
  PagedKeys(std::span<const KvPages> layers, Ops& ops) : layers_(layers), ops_(ops) {}

  Keys keys(size_t layer, const Keys& own) override {
    const KvPages& pages = layers_[layer];
    const int64_t head_dim = pages.keys.columns();
    ops_.append_kv({.k = own.k,
                    .v = own.v,
                    .pages = pages,
                    .batch = own.batch,
                    .num_kv_heads = static_cast<int32_t>(own.k.columns() / head_dim),
                    .head_dim = static_cast<int32_t>(head_dim)});
    return {.k = {}, .v = {}, .batch = {}, .pages = pages};
  }

 private:
  std::span<const KvPages> layers_;
  Ops& ops_;
};

}  // namespace packhorse
