// Progress of loading weights.
#pragma once

#include <cstddef>

#include "packhorse/export.h"

namespace packhorse {

/// Bytes of weights as they lie in the device's memory.
struct LoadProgress {
  size_t done = 0;
  size_t total = 0;  // 0: none are being loaded
};

/// Returns how far the load has come that this process began last. May be called by any thread.
PACKHORSE_API LoadProgress load_progress();

}  // namespace packhorse
