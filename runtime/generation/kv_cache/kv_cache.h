// The key-value cache of a model: pages of all layers in one allocation.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/arena.h"
#include "generation/runner/step_runner.h"
#include "model/layers/stack.h"
#include "model/spec/spec.h"
#include "ops/args/cca.h"
#include "ops/device_context.h"

namespace packhorse {

/// Sizes of one page of the cache.
struct KvCacheShape {
  int64_t num_layers = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;           // as stored
  DType dtype = DType::kFloat32;  // keys and values; kFloat8 with scales
  /// Sizes of LatentPages, where attention is compressed.
  DType latent_dtype = DType::kFloat32;
  int64_t latent_columns = 0;
  int64_t latent_stride = 0;  // columns of a row, with which pages take whole steps of the arena
  int64_t latent_slots = 0;

  /// Keys, or values, of one page in one layer, and their scales.
  size_t keys_bytes() const {
    return static_cast<size_t>(num_kv_heads * kPageTokens * head_dim) * size_of(dtype);
  }
  size_t scales_bytes() const {
    if (dtype != DType::kFloat8) return 0;
    return static_cast<size_t>(num_kv_heads * kPageTokens) * sizeof(float);
  }
  /// The latents that a page keeps in one layer.
  size_t layer_latent_bytes() const {
    return static_cast<size_t>(latent_stride * latent_slots) * size_of(latent_dtype);
  }
  size_t page_bytes() const {
    return static_cast<size_t>(num_layers) *
           (2 * keys_bytes() + 2 * scales_bytes() + layer_latent_bytes());
  }
  /// Bytes of the cache for each token that it holds.
  size_t bytes_per_token() const { return page_bytes() / kPageTokens; }
};

/// `dtype`: of activations. `cache`: of keys and values. `taken_back`: so many tokens of a sequence
/// may be computed again.
KvCacheShape kv_cache_shape(const StackSpec& spec, const StackWeights& weights, DType dtype,
                            DType cache, int64_t taken_back);

/// Pages of every layer, without a table: each step brings its own.
class KvCache {
 public:
  /// Takes memory for `num_pages` pages from the arena, both when it counts and when it carves.
  KvCache(const KvCacheShape& shape, int64_t num_pages, Arena& arena);

  /// The pages of each layer. Tables, lengths and bounds are left to the step.
  std::span<const PagedKvCache> layers() const { return layers_; }
  /// The pages of each layer's latents, or nothing where attention is not compressed.
  std::span<const LatentPages> latents() const { return latents_; }
  /// Copies tokens of pages in all layers, with the result of copies in the order given.
  void copy(std::span<const PageCopy> copies, DeviceContext& device);

 private:
  /// Adds what one page is copied by in all layers.
  void add_copies(const PageCopy& page);

  KvCacheShape shape_;
  std::vector<PagedKvCache> layers_;
  std::vector<LatentPages> latents_;
  std::vector<DeviceCopy> copies_;  // those that are asked for together
  /// By page: twice the number of the copies that it last had a part in, and 1 more where it was
  /// written. They show which copies may not be made together.
  std::vector<uint64_t> last_copied_;
  uint64_t num_copies_ = 0;
};

}  // namespace packhorse
