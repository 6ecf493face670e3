// Survives that somebody truncates a file while it is read through a mapping.
#pragma once

#include <cstddef>

namespace packhorse {

/// Reading a page that a mapped file no longer has raises SIGBUS, which ends the process. While a
/// FaultGuard covers the mapping, the pages from there on become zeros instead, and `lost` says so.
///
/// The first guard installs a signal handler for the whole process, which stays. Faults outside of
/// guarded memory go to the handler that was there before. If the program replaces the handler
/// later, or guards more than kMost mappings at once, such faults end the process as before.
class FaultGuard {
 public:
  static constexpr size_t kMost = 1024;

  /// Covers [data, data + bytes), a mapping that lives longer than the guard.
  FaultGuard(void* data, size_t bytes);
  ~FaultGuard();
  FaultGuard(const FaultGuard&) = delete;
  FaultGuard& operator=(const FaultGuard&) = delete;

  /// Returns whether a read has found no page since the guard was made. What was read may be zeros.
  bool lost() const;

 private:
  size_t slot_;  // kMost: there was none left
};

}  // namespace packhorse
