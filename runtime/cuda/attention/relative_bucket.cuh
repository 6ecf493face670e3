// The bucket of a relative position, as T5 (arXiv 1910.10683, section 2.1) and MPNet define it.
#pragma once

#include "ops/args/attention.h"

namespace packhorse::cuda {

/// Returns the row of ScoreTerm::table for `offset` = key position - query position.
__device__ inline int relative_bucket(const ScoreTerm& term, int offset) {
  const int buckets = term.bidirectional ? term.num_buckets / 2 : term.num_buckets;
  const int exact = buckets / 2;
  const int distance = term.bidirectional ? abs(offset) : max(-offset, 0);
  int bucket = distance;
  if (distance >= exact) {
    const float ratio = logf(static_cast<float>(distance) / static_cast<float>(exact)) /
                        logf(static_cast<float>(term.max_distance) / static_cast<float>(exact));
    bucket =
        min(exact + static_cast<int>(ratio * static_cast<float>(buckets - exact)), buckets - 1);
  }
  return term.bidirectional && offset > 0 ? bucket + buckets : bucket;
}

}  // namespace packhorse::cuda
