// Constants that a model's positions come from.
#pragma once

#include <cstdint>
#include <vector>

namespace packhorse {

/// theta^(-2 j / dims) / factor for j < dims / 2; in float32, as the models were trained.
std::vector<float> rope_frequencies(float theta, int64_t dims, float factor);

/// Slope of each head (Press et al., ALiBi, arXiv 2108.12409): 2^(-8 (h + 1) / n) for n heads, a
/// power of two; for other counts those of the power of two below, then every second one of the
/// power of two above.
std::vector<float> alibi_slopes(int64_t num_heads);

}  // namespace packhorse
