// The encoder recorded for batches of several sizes. Each recording serves every batch up to its
// bounds, because kernels read the exact counts on the device.
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
  /// Records `encode` for all sizes that the device asks for, without and, where the model takes
  /// them, with type ids.
  void record(DeviceContext& device, int64_t max_tokens, int64_t max_seqlen, bool takes_type_ids,
              const std::function<void(const RecordingBounds&, bool has_type_ids)>& encode);
  /// What the smallest recording that holds such a batch was made for; none where there is none.
  std::optional<RecordingBounds> bounds_of(const RecordingBounds& batch, bool has_type_ids) const;
  /// Runs the smallest that holds such a batch; false where there is none.
  bool launch(const RecordingBounds& batch, bool has_type_ids) const;

 private:
  struct Entry {
    RecordingBounds bounds;
    std::unique_ptr<Recording> recording;
  };
  // Null where there is none.
  const Entry* find(const RecordingBounds& batch, bool has_type_ids) const;

  std::vector<Entry> entries_[2];  // [has_type_ids], in the order of recording_bounds
};

}  // namespace packhorse
