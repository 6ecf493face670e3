// Weights that are read before they are needed, by threads that have nothing else to do.
//
// A step of few rows takes as long as reading the weights. Between two products come steps too
// small for more than one thread, during which memory would rest.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "cpu/threads/spin.h"

namespace packhorse::cpu {

/// Memory that threads bring into their caches while they wait. It may be gone by then: reading
/// ahead is a hint to the processor, which ignores addresses of no memory.
class ReadAhead {
 public:
  struct Range {
    const char* data = nullptr;
    int64_t bytes = 0;
  };

  /// Replaces what is left of an earlier range. It will be read in so many streams, which begin at
  /// equal distances; all of them are read ahead.
  void set(const Range& range, int streams) noexcept {
    data_.store(range.data, std::memory_order_relaxed);
    stream_bytes_.store(range.bytes / streams / kPiece * kPiece, std::memory_order_relaxed);
    streams_.store(streams, std::memory_order_relaxed);
    next_.store(0, std::memory_order_relaxed);
  }

  /// Asks for the next piece, if there is one, then pauses: processors drop prefetches for which no
  /// buffer is free. Any thread may call this at any time.
  void fetch_and_pause() noexcept {
    const int64_t bytes = stream_bytes_.load(std::memory_order_relaxed);
    const int streams = streams_.load(std::memory_order_relaxed);
    if (next_.load(std::memory_order_relaxed) < std::min(bytes * streams, kMostBytes)) {
      const int64_t piece = next_.fetch_add(kPiece, std::memory_order_relaxed) / kPiece;
      const char* const from = data_.load(std::memory_order_relaxed) + piece % streams * bytes +
                               piece / streams * kPiece;
      for (int64_t i = 0; i < kPiece; i += kLine) __builtin_prefetch(from + i, 0, 2);
    }
    pause_briefly();
  }

 private:
  // About half of a second-level cache, and as many lines as a core has on their way during a pause
  // (on Zen 4, 8 lines for each pause come at 19 GB/s; of 16 half are dropped).
  static constexpr int64_t kMostBytes = 1 << 19, kPiece = 1 << 9, kLine = 64;

  // A mixture of two ranges, which a thread may see, does no harm.
  std::atomic<const char*> data_{nullptr};
  std::atomic<int64_t> stream_bytes_{0};
  std::atomic<int> streams_{1};
  alignas(64) std::atomic<int64_t> next_{0};  // sum over all streams
};

/// The order in which weights are read, learned from the last time. Where two weights fall on the
/// same place of a table, the later one is remembered.
class WeightOrder {
 public:
  /// Tells that this weight is read now; returns the one that was read after it last time.
  ReadAhead::Range after(const ReadAhead::Range& weight) {
    if (last_ != nullptr) last_->next = weight;
    last_ = &places_[place_of(weight.data)];
    if (last_->weight != weight.data) *last_ = {weight.data, {}};
    return last_->next;
  }

 private:
  struct Place {
    const char* weight = nullptr;
    ReadAhead::Range next;
  };
  static constexpr int kPlaceBits = 11;

  // Fibonacci hashing.
  static size_t place_of(const char* weight) {
    return reinterpret_cast<uintptr_t>(weight) * uint64_t{0x9e3779b97f4a7c15} >> (64 - kPlaceBits);
  }

  std::vector<Place> places_ = std::vector<Place>(size_t{1} << kPlaceBits);
  Place* last_ = nullptr;
};

}  // namespace packhorse::cpu
