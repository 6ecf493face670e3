// A batch of images without padding: the patches of all of them in one array, and the grid of each.
#pragma once

#include <cstdint>
#include <span>

#include "packhorse/export.h"

namespace packhorse {

/// A borrowed view of one batch of B images in host memory.
///
/// features  float32[P, k]  patches, image after image, row by row in each grid. The k elements of
/// a
///                          patch are those of a convolution's weight: channel, row, column
/// grids     int32[B, 2]    rows and columns of patches of each image
///
/// P = 0, B = 0 and empty grids are allowed. A model may put rows of its own before the patches of
/// an image that has any; they count as tokens.
struct PACKHORSE_API PackedPatches {
  std::span<const float> features;
  int64_t columns = 0;  // k
  std::span<const int32_t> grids;

  int64_t num_patches() const {
    return columns > 0 ? static_cast<int64_t>(features.size()) / columns : 0;
  }
  int64_t num_sequences() const { return static_cast<int64_t>(grids.size()) / 2; }
};

/// The limits that a model and a session's options set for batches of images.
struct PatchLimits {
  int64_t max_tokens = 0;
  int64_t max_sequences = 0;
  int64_t max_seqlen = 0;  // tokens of the largest image
  int64_t columns = 0;     // elements of a patch
  int64_t prefix = 0;      // rows before the patches of an image
};

/// The number of tokens of an image with this grid.
inline int64_t tokens_of(int32_t rows, int32_t columns, int64_t prefix) {
  const int64_t patches = int64_t{rows} * columns;
  return patches > 0 ? prefix + patches : 0;
}

/// Checks the grids of a batch of `num_patches` patches of `columns` elements. Throws as `check`
/// does.
PACKHORSE_API void check_grids(std::span<const int32_t> grids, int64_t num_patches, int64_t columns,
                               const PatchLimits& limits);

/// Checks a whole batch, but not the elements of patches. Throws InvalidArgument naming the array,
/// the index, what was found and what was expected.
PACKHORSE_API void check(const PackedPatches& batch, const PatchLimits& limits);

}  // namespace packhorse
