// The side of packhorse/load_progress.h that loads.
#pragma once

#include <cstddef>

namespace packhorse {

/// Covers one load of `total` bytes. Where several run at once, the last one is told of.
class ProgressScope {
 public:
  explicit ProgressScope(size_t total);
  ~ProgressScope();
  ProgressScope(const ProgressScope&) = delete;
  ProgressScope& operator=(const ProgressScope&) = delete;
};

/// Counts `bytes` that have been loaded.
void note_loaded(size_t bytes);

}  // namespace packhorse
