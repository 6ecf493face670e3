#include "model/recordings.h"

#include <algorithm>
#include <bit>

namespace packhorse {
namespace {

/// Backends have kernels for batches whose longest sequence is no longer than this.
constexpr int64_t kShortSequence = 128;

/// The next larger bucket: twice as large up to 128, then eight to an octave. Tiles of 64 and 128
/// rows make waves over the multiprocessors; the closer a bucket, the better the choice of tiles.
int64_t next_bucket(int64_t bucket) {
  if (bucket < 128) return 2 * bucket;
  return bucket + static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(bucket))) / 8;
}

}  // namespace

Recordings::BySize& Recordings::of(const Bounds& bounds) {
  return recordings_[bounds.max_seqlen <= kShortSequence][bounds.has_type_ids];
}

const Recordings::Made* Recordings::find(const Bounds& batch) const {
  const BySize& recordings = const_cast<Recordings*>(this)->of(batch);
  const auto found = recordings.lower_bound(batch.num_tokens);
  return found == recordings.end() ? nullptr : &found->second;
}

void Recordings::record(Ops& ops, int64_t max_tokens, int64_t max_seqlen, bool takes_type_ids,
                        const std::function<void(const Bounds&)>& encode) {
  for (int64_t size = 16;; size = next_bucket(size)) {
    const int64_t bucket = std::min(size, max_tokens);
    const int64_t longest = std::min(bucket, max_seqlen);
    for (const int64_t limit : {std::min(longest, kShortSequence), longest}) {
      for (const bool has_type_ids : {false, true}) {
        const Bounds bounds = {bucket, limit, has_type_ids};
        if (of(bounds).contains(bucket) || (has_type_ids && !takes_type_ids)) continue;
        auto recording = ops.record([&] { encode(bounds); });
        if (recording == nullptr) return;
        of(bounds)[bucket] = {bounds, std::move(recording)};
      }
    }
    if (bucket == max_tokens) return;
  }
}

std::optional<Recordings::Bounds> Recordings::bounds_of(const Bounds& batch) const {
  const Made* found = find(batch);
  if (found == nullptr) return std::nullopt;
  return found->bounds;
}

bool Recordings::launch(const Bounds& batch) {
  const Made* found = find(batch);
  if (found == nullptr) return false;
  found->recording->launch();
  return true;
}

}  // namespace packhorse
