#include "model/recordings.h"

#include <algorithm>
#include <utility>

namespace packhorse {

void Recordings::record(Ops& ops, int64_t max_tokens,
                        const std::function<void(int64_t, bool)>& encode) {
  for (int64_t step = 16; step < 2 * max_tokens; step *= 2) {
    for (const int64_t size : {step, step / 2 * 3}) {
      const int64_t bucket = std::min(size, max_tokens);
      for (const bool has_type_ids : {false, true}) {
        if (recordings_[has_type_ids].contains(bucket)) continue;
        auto recording = ops.record([&] { encode(bucket, has_type_ids); });
        if (recording == nullptr) return;
        recordings_[has_type_ids][bucket] = std::move(recording);
      }
    }
  }
}

bool Recordings::launch(int64_t num_tokens, bool has_type_ids) {
  const auto& recordings = recordings_[has_type_ids];
  const auto found = recordings.lower_bound(num_tokens);
  if (found == recordings.end()) return false;
  found->second->launch();
  return true;
}

}  // namespace packhorse
