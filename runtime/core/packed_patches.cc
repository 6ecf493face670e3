#include "packhorse/packed_patches.h"

#include <iterator>

#include "core/format.h"
#include "packhorse/error.h"

namespace packhorse {

void check_grids(std::span<const int32_t> grids, int64_t num_patches, int64_t columns,
                 const PatchLimits& limits) {
  constexpr int32_t kMostSide = int32_t{1} << 20;
  if (columns != limits.columns) {
    throw InvalidArgument(concat("features has ", columns, " columns; the model takes ",
                                 limits.columns, " elements for each patch"));
  }
  const int64_t images = std::ssize(grids) / 2;
  if (images > limits.max_sequences) {
    throw InvalidArgument(
        concat("the batch has ", images,
               " images; the session is planned for max_sequences = ", limits.max_sequences));
  }
  int64_t patches = 0;
  int64_t tokens = 0;
  for (int64_t i = 0; i < images; ++i) {
    const int32_t down = grids[static_cast<size_t>(2 * i)];
    const int32_t across = grids[static_cast<size_t>(2 * i + 1)];
    if (down < 0 || across < 0 || down > kMostSide || across > kMostSide) {
      throw InvalidArgument(concat("grids[", i, "] is ", down, " x ", across, "; expected 0 to ",
                                   kMostSide, " rows and columns"));
    }
    const int64_t length = tokens_of(down, across, limits.prefix);
    if (length > limits.max_seqlen) {
      throw InvalidArgument(
          concat("grids[", i, "] is ", down, " x ", across, ", which makes ", length,
                 " tokens; the model takes max_seqlen = ", limits.max_seqlen, " at most"));
    }
    patches += int64_t{down} * across;
    tokens += length;
  }
  if (patches != num_patches) {
    throw InvalidArgument(
        concat("features has ", num_patches, " rows, but the grids have ", patches, " patches"));
  }
  if (tokens > limits.max_tokens) {
    throw InvalidArgument(
        concat("the batch has ", tokens,
               " tokens; the session is planned for max_tokens = ", limits.max_tokens));
  }
}

void check(const PackedPatches& batch, const PatchLimits& limits) {
  check_grids(batch.grids, batch.num_patches(), batch.columns, limits);
}

}  // namespace packhorse
