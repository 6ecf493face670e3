// The encoder recorded for bucket after bucket of token counts: 16, 32, 64, 128, 144, 160, ... Each
// recording serves every batch up to its size, because kernels read the exact counts on the device.
// Of a bucket there is one for short sequences only, and one for any.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

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
  /// Runs the smallest that holds such a batch; false where there is none.
  bool launch(const Bounds& batch);

 private:
  std::map<int64_t, std::unique_ptr<Recording>>& of(const Bounds& bounds);

  // [short sequences only][has_type_ids], by token count.
  std::map<int64_t, std::unique_ptr<Recording>> recordings_[2][2];
};

}  // namespace packhorse
