// GraphCache of the encoder for batches of several sizes. Each graph serves every batch up to
// its bounds, because kernels read the exact counts on the device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "ops/device_context.h"

namespace packhorse {

class GraphCache {
 public:
  /// Records `encode` for all sizes that the device asks for: once without type ids and, if the
  /// model takes them, once with.
  void record(DeviceContext& device, int64_t max_tokens, int64_t max_seqlen, bool takes_type_ids,
              const std::function<void(const GraphBounds&, bool has_type_ids)>& encode);
  /// The bounds of the smallest graph that holds this batch, or nothing if there is none.
  std::optional<GraphBounds> bounds_of(const GraphBounds& batch, bool has_type_ids) const;
  /// Runs the smallest graph that holds this batch. Returns false if there is none.
  bool launch(const GraphBounds& batch, bool has_type_ids) const;

 private:
  struct Entry {
    GraphBounds bounds;
    std::unique_ptr<DeviceGraph> graph;
  };
  // Returns the smallest graph that holds this batch, or null.
  const Entry* find(const GraphBounds& batch, bool has_type_ids) const;

  std::vector<Entry> entries_[2];  // index: has_type_ids; order: that of graph_bounds
};

}  // namespace packhorse
