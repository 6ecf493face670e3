// The constants by which models encode positions.
#pragma once

#include <cstdint>
#include <vector>

#include "packhorse/export.h"

namespace packhorse {

/// The RoPE frequencies theta^(-2 j / dims) / factor for j < dims / 2, computed in float32 because
/// models were trained that way.
std::vector<float> rope_frequencies(float theta, int64_t dims, float factor);

/// The ALiBi slope of each head (Press et al., arXiv 2108.12409). If the number of heads n is a
/// power of two, it is 2^(-8 (h + 1) / n) for head h. For other numbers, the first heads have the
/// slopes for the next lower power of two, and the rest have every second slope for the next higher
/// one.
std::vector<float> alibi_slopes(int64_t num_heads);

/// The bucket of a distance to the left in causal attention, as T5 counts them (Raffel et al.,
/// arXiv 1910.10683): one for each distance below num_buckets / 2; the others grow with the
/// logarithm of the distance, up to max_distance. In float32, because rounding decides at the
/// boundaries.
PACKHORSE_API int64_t causal_bucket(int64_t distance, int64_t num_buckets, int64_t max_distance);

/// For each distance of query and key (query minus key) from -limit to limit, the row of the table
/// of relative positions, as DeBERTa counts them (He et al., arXiv 2006.03654 and 2111.09543).
/// Beyond `limit` the row no longer changes. With `num_buckets` 0 there is one row for each
/// distance up to `max_distance`. Otherwise there is one row for each distance up to num_buckets /
/// 2, and beyond that rows grow with the logarithm of the distance.
struct RelativeSlots {
  std::vector<int32_t> slots;  // [2 limit + 1]
  int32_t limit = 0;
};
PACKHORSE_API RelativeSlots relative_slots(int64_t num_buckets, int64_t max_distance);

}  // namespace packhorse
