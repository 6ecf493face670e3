// The encoder recorded for bucket after bucket of token counts: 16, 24, 32, 48, ... Each recording
// serves every batch up to its size, because kernels read the exact counts on the device.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "ops/ops.h"

namespace packhorse {

class Recordings {
 public:
  /// Records `encode(num_tokens, has_type_ids)` for every bucket up to max_tokens. Nothing where
  /// the device gains nothing by it.
  void record(Ops& ops, int64_t max_tokens,
              const std::function<void(int64_t num_tokens, bool has_type_ids)>& encode);
  /// Runs the smallest that holds `num_tokens`; false where there is none.
  bool launch(int64_t num_tokens, bool has_type_ids);

 private:
  std::map<int64_t, std::unique_ptr<Recording>> recordings_[2];  // [has_type_ids], by token count
};

}  // namespace packhorse
