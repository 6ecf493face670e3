#include "session/graph_cache.h"

#include <algorithm>

namespace packhorse {

void GraphCache::record(DeviceContext& device, int64_t max_tokens, int64_t max_seqlen,
                        bool takes_type_ids,
                        const std::function<void(const GraphBounds&, bool has_type_ids)>& encode) {
  for (const GraphBounds& bounds : device.graph_bounds(max_tokens, max_seqlen)) {
    for (const bool has_type_ids : {false, true}) {
      if (has_type_ids && !takes_type_ids) continue;
      entries_[has_type_ids].push_back(
          {bounds, device.record([&] { encode(bounds, has_type_ids); })});
    }
  }
}

const GraphCache::Entry* GraphCache::find(const GraphBounds& batch, bool has_type_ids) const {
  const std::vector<Entry>& entries = entries_[has_type_ids];
  const auto large_enough =
      std::lower_bound(entries.begin(), entries.end(), batch.num_tokens,
                       [](const Entry& e, int64_t n) { return e.bounds.num_tokens < n; });
  const auto found = std::find_if(large_enough, entries.end(), [&](const Entry& entry) {
    return entry.bounds.max_seqlen >= batch.max_seqlen &&
           entry.bounds.min_seqlen <= batch.min_seqlen;
  });
  return found == entries.end() ? nullptr : &*found;
}

std::optional<GraphBounds> GraphCache::bounds_of(const GraphBounds& batch,
                                                 bool has_type_ids) const {
  const Entry* found = find(batch, has_type_ids);
  if (found == nullptr) return std::nullopt;
  return found->bounds;
}

bool GraphCache::launch(const GraphBounds& batch, bool has_type_ids) const {
  const Entry* found = find(batch, has_type_ids);
  if (found == nullptr) return false;
  found->graph->launch();
  return true;
}

}  // namespace packhorse
