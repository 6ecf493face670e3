#include "generation/kv_cache.h"

#include <string>

#include "core/format.h"

namespace packhorse {

KvCacheShape kv_cache_shape(const StackSpec& spec, const StackWeights& weights, DType dtype) {
  return {.num_layers = spec.num_layers,
          .num_kv_heads = spec.attention.num_kv_heads,
          .head_dim = weights.head_dim,
          .dtype = dtype};
}

KvCache::KvCache(const KvCacheShape& shape, int64_t num_pages, Arena& arena) : shape_(shape) {
  const int64_t rows = num_pages * shape.num_kv_heads * kPageTokens;
  for (int64_t layer = 0; layer < shape.num_layers; ++layer) {
    KvPages pages;
    pages.keys =
        arena.take_matrix(concat("layers.", layer, ".keys"), rows, shape.head_dim, shape.dtype);
    pages.values =
        arena.take_matrix(concat("layers.", layer, ".values"), rows, shape.head_dim, shape.dtype);
    layers_.push_back(pages);
  }
}

void KvCache::copy(std::span<const PageCopy> copies, DeviceContext& device) const {
  const size_t bytes = shape_.layer_page_bytes() / 2;
  for (const PageCopy& page : copies) {
    for (const KvPages& layer : layers_) {
      for (const TensorView& part : {layer.keys, layer.values}) {
        char* first = part.as<char>();
        device.copy(first + static_cast<size_t>(page.to) * bytes,
                    first + static_cast<size_t>(page.from) * bytes, bytes);
      }
    }
  }
}

}  // namespace packhorse
