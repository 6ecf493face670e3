// Recordings of the encoder for batches of several sizes. Each recording serves every batch up to
// its bounds, because kernels read the exact counts on the device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "ops/device_context.h"

namespace packhorse {

class Recordings {
 public:
  /// Records `encode` for all sizes that the device asks for: once without type ids and, if the
  /// model takes them, once with.
  void record(DeviceContext& device, int64_t max_tokens, int64_t max_seqlen, bool takes_type_ids,
              const std::function<void(const RecordingBounds&, bool has_type_ids)>& encode);
  /// The bounds of the smallest recording that holds this batch, or nothing if there is none.
  std::optional<RecordingBounds> bounds_of(const RecordingBounds& batch, bool has_type_ids) const;
  /// Runs the smallest recording that holds this batch. Returns false if there is none.
  bool launch(const RecordingBounds& batch, bool has_type_ids) const;

 private:
  struct Entry {
    RecordingBounds bounds;
    std::unique_ptr<Recording> recording;
  };
  // Returns the smallest recording that holds this batch, or null.
  const Entry* find(const RecordingBounds& batch, bool has_type_ids) const;

  std::vector<Entry> entries_[2];  // index: has_type_ids; order: that of recording_bounds
};

}  // namespace packhorse
