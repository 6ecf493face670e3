#include "model/recordings.h"

#include <algorithm>

namespace packhorse {
namespace {

/// Backends have kernels for batches whose longest sequence is no longer than this.
constexpr int64_t kShortSequence = 128;

}  // namespace

std::map<int64_t, std::unique_ptr<Recording>>& Recordings::of(const Bounds& bounds) {
  return recordings_[bounds.max_seqlen <= kShortSequence][bounds.has_type_ids];
}

void Recordings::record(Ops& ops, int64_t max_tokens, int64_t max_seqlen,
                        const std::function<void(const Bounds&)>& encode) {
  for (int64_t step = 16; step < 2 * max_tokens; step *= 2) {
    for (const int64_t size : {step, step / 2 * 3}) {
      const int64_t bucket = std::min(size, max_tokens);
      const int64_t longest = std::min(bucket, max_seqlen);
      for (const int64_t limit : {std::min(longest, kShortSequence), longest}) {
        for (const bool has_type_ids : {false, true}) {
          const Bounds bounds = {bucket, limit, has_type_ids};
          if (of(bounds).contains(bucket)) continue;
          auto recording = ops.record([&] { encode(bounds); });
          if (recording == nullptr) return;
          of(bounds)[bucket] = std::move(recording);
        }
      }
    }
  }
}

bool Recordings::launch(const Bounds& batch) {
  const auto& recordings = of(batch);
  const auto found = recordings.lower_bound(batch.num_tokens);
  if (found == recordings.end()) return false;
  found->second->launch();
  return true;
}

}  // namespace packhorse
