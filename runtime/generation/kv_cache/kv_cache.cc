#include "generation/kv_cache/kv_cache.h"

#include <algorithm>
#include <string>

#include "core/format.h"
#include "core/math.h"

namespace packhorse {

KvCacheShape kv_cache_shape(const StackSpec& spec, const StackWeights& weights, DType dtype,
                            DType cache, int64_t taken_back) {
  const AttentionSpec& attention = spec.layers.front().attention();
  KvCacheShape shape = {.num_layers = static_cast<int64_t>(spec.layers.size()),
                        .num_kv_heads = attention.num_kv_heads,
                        .head_dim = weights.head_dim,
                        .dtype = cache,
                        .latent_dtype = dtype};
  if (const auto* cca = std::get_if<CcaSpec>(&spec.layers.front().blocks.front().kind)) {
    const auto& first = std::get<CcaWeights>(weights.layers.front().blocks.front().kind);
    const CcaArgs args = cca_of(*cca, first, weights.head_dim);
    shape.latent_columns = args.state_columns();
    const auto step = static_cast<int64_t>(Arena::kAlignment / size_of(dtype));
    shape.latent_stride = round_up(shape.latent_columns, step);
    shape.latent_slots = std::min(kPageTokens, std::max<int64_t>(1, args.reach()) + taken_back);
  }
  return shape;
}

KvCache::KvCache(const KvCacheShape& shape, int64_t num_pages, Arena& arena) : shape_(shape) {
  const int64_t heads = num_pages * shape.num_kv_heads;
  for (int64_t layer = 0; layer < shape.num_layers; ++layer) {
    const auto take = [&](const char* name, int64_t rows, int64_t columns, DType dtype) {
      return arena.take_matrix(concat("layers.", layer, ".", name), rows, columns, dtype);
    };
    PagedKvCache pages;
    pages.keys = take("keys", heads * kPageTokens, shape.head_dim, shape.dtype);
    pages.values = take("values", heads * kPageTokens, shape.head_dim, shape.dtype);
    if (shape.scales_bytes() > 0) {
      pages.key_scales = take("key_scales", heads, kPageTokens, DType::kFloat32);
      pages.value_scales = take("value_scales", heads, kPageTokens, DType::kFloat32);
    }
    layers_.push_back(pages);
    if (shape.latent_slots == 0) continue;
    LatentPages latents;
    latents.slots = shape.latent_slots;
    latents.rows =
        take("latents", num_pages * shape.latent_slots, shape.latent_stride, shape.latent_dtype)
            .column_slice(0, shape.latent_columns);
    latents_.push_back(latents);
  }
}

void KvCache::add_copies(const PageCopy& page) {
  const auto add = [&](const TensorView& part, size_t page_bytes, size_t row_bytes, int64_t rows) {
    if (page_bytes == 0) return;
    char* first = part.as<char>();
    copies_.push_back({.to = first + static_cast<size_t>(page.to) * page_bytes,
                       .from = first + static_cast<size_t>(page.from) * page_bytes,
                       .bytes = row_bytes,
                       .stride = page_bytes / static_cast<size_t>(rows),
                       .rows = rows});
  };
  // The tokens of each head lie behind one another.
  const int64_t heads = shape_.num_kv_heads;
  const auto tokens = static_cast<size_t>(page.tokens);
  const size_t key_bytes = tokens * static_cast<size_t>(shape_.head_dim) * size_of(shape_.dtype);
  for (const PagedKvCache& layer : layers_) {
    add(layer.keys, shape_.keys_bytes(), key_bytes, heads);
    add(layer.values, shape_.keys_bytes(), key_bytes, heads);
    add(layer.key_scales, shape_.scales_bytes(), tokens * sizeof(float), heads);
    add(layer.value_scales, shape_.scales_bytes(), tokens * sizeof(float), heads);
  }
  const size_t latent_bytes = shape_.layer_latent_bytes();
  for (const LatentPages& layer : latents_) add(layer.rows, latent_bytes, latent_bytes, 1);
}

void KvCache::copy(std::span<const PageCopy> copies, DeviceContext& device) {
  ++num_copies_;
  for (const PageCopy& page : copies) {
    const auto pages = static_cast<size_t>(std::max(page.from, page.to)) + 1;
    if (last_copied_.size() < pages) last_copied_.resize(pages);
    uint64_t& from = last_copied_[static_cast<size_t>(page.from)];
    uint64_t& to = last_copied_[static_cast<size_t>(page.to)];
    // A page that is written may have been read before, and one that is read have been written.
    const uint64_t wrote = 2 * num_copies_ + 1;
    if (from == wrote || to / 2 == num_copies_) {
      device.copy(copies_);
      copies_.clear();
      ++num_copies_;
    }
    from = std::max(from, 2 * num_copies_);
    to = 2 * num_copies_ + 1;
    add_copies(page);
  }
  device.copy(copies_);
  copies_.clear();
}

}  // namespace packhorse
