// Constants that a model's positions come from.
#pragma once

#include <cstdint>
#include <vector>

#include "packhorse/export.h"

namespace packhorse {

/// theta^(-2 j / dims) / factor for j < dims / 2; in float32, as the models were trained.
std::vector<float> rope_frequencies(float theta, int64_t dims, float factor);

/// Slope of each head (Press et al., ALiBi, arXiv 2108.12409): 2^(-8 (h + 1) / n) for n heads, a
/// power of two; for other counts those of the power of two below, then every second one of the
/// power of two above.
std::vector<float> alibi_slopes(int64_t num_heads);

/// The row of a table of relative positions for each distance of query and key (query minus key),
/// as DeBERTa counts (He et al., arXiv 2006.03654 and 2111.09543): from -limit to limit, beyond
/// which rows no longer change. `num_buckets` 0: one row for each distance up to `max_distance`;
/// else rows as for distances up to half of them, then growing like their logarithm.
struct RelativeSlots {
  std::vector<int32_t> slots;  // [2 limit + 1]
  int32_t limit = 0;
};
PACKHORSE_API RelativeSlots relative_slots(int64_t num_buckets, int64_t max_distance);

}  // namespace packhorse
