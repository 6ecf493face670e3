// The encoder recorded for bucket after bucket of token counts: 16, 32, 64, 128, 144, 160, ... Each
// recording serves every batch up to its size, because kernels read the exact counts on the device.
// Of a bucket there is one for short sequences only, and one for any.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "ops/ops.h"

namespace packhorse {

class Recordings {
 public:
  /// What a recording is made for: batches of at most so many tokens, and tokens in one sequence.
  struct Bounds {
    int64_t num_tokens = 0;
    int64_t max_seqlen = 0;
    bool has_type_ids = false;
  };
  /// Records `encode` for every bucket up to max_tokens, without and, where the model takes
  /// them, with type ids. Nothing where the device gains nothing by it.
  void record(Ops& ops, int64_t max_tokens, int64_t max_seqlen, bool takes_type_ids,
              const std::function<void(const Bounds&)>& encode);
  /// What the smallest recording that holds such a batch was made for; none where there is none.
  std::optional<Bounds> bounds_of(const Bounds& batch) const;
  /// Runs the smallest that holds such a batch; false where there is none.
  bool launch(const Bounds& batch);

 private:
  struct Made {
    Bounds bounds;
    std::unique_ptr<Recording> recording;
  };
  using BySize = std::map<int64_t, Made>;

  BySize& of(const Bounds& bounds);
  // Null where there is none.
  const Made* find(const Bounds& batch) const;

  // [short sequences only][has_type_ids], by token count.
  BySize recordings_[2][2];
};

}  // namespace packhorse
