// Where the attention of a layer takes its keys and values from.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "ops/args/attention.h"
#include "ops/args/cca.h"

namespace packhorse {

/// Keys and values of tokens, and the offsets of their sequences; or the pages of a cache, and what
/// attention adds to them first.
struct Keys {
  TensorView k;  // [Tk, num_kv_heads * head_dim]
  TensorView v;  // [Tk, num_kv_heads * head_dim]
  BatchView batch;
  PagedKvCache pages = {};
};

class KeySource {
 public:
  virtual ~KeySource() = default;
  /// Returns the keys and values that the batch attends to in layer `layer` of the stack. `own`
  /// holds those that the layer has just computed from the batch itself.
  virtual Keys keys(size_t layer, const Keys& own) = 0;
  /// Returns the batch as attention over these keys takes it: neighbouring sequences that see the
  /// same keys may be one in it.
  virtual BatchView queries(const BatchView& batch) { return batch; }
  /// Called with the attention that a block of layer `layer` is about to compute over these keys,
  /// where they are those of another stack.
  virtual void before_attention(size_t /*layer*/, const AttentionArgs& /*args*/) {}
  /// Where compressed attention keeps latents of sequences that go on in layer `layer`; none where
  /// all sequences of a batch are whole.
  virtual LatentPages latents(size_t /*layer*/) { return {}; }
};

/// Keys and values of the batch itself, so that every sequence attends to its own tokens.
class OwnKeys final : public KeySource {
 public:
  Keys keys(size_t, const Keys& own) override { return own; }
};

/// Keys and values of the batch and of everything before it, in the pages of a cache.
class PagedKeys final : public KeySource {
 public:
  /// `layers` holds the cache of each layer of the stack, `latents` that of each with compressed
  /// attention or nothing. Both outlive the object.
  PagedKeys(std::span<const PagedKvCache> layers, std::span<const LatentPages> latents = {})
      : layers_(layers), latents_(latents) {}
  /// `queries`: the batch, as KeySource::queries returns it.
  PagedKeys(std::span<const PagedKvCache> layers, const BatchView& queries)
      : layers_(layers), queries_(queries) {}

  Keys keys(size_t layer, const Keys& own) override {
    return {.k = own.k, .v = own.v, .batch = {}, .pages = layers_[layer]};
  }
  BatchView queries(const BatchView& batch) override { return queries_.value_or(batch); }
  LatentPages latents(size_t layer) override {
    return latents_.empty() ? LatentPages() : latents_[layer];
  }

 private:
  std::span<const PagedKvCache> layers_;
  std::span<const LatentPages> latents_;
  std::optional<BatchView> queries_;
};

}  // namespace packhorse
