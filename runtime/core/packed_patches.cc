#include "packhorse/packed_patches.h"

#include "core/format.h"
#include "packhorse/error.h"

namespace packhorse {

void check(const PackedPatches& batch, const PatchLimits& limits) {
  constexpr int32_t kMostSide = int32_t{1} << 20;
  if (batch.columns != limits.columns) {
    throw InvalidArgument(concat("features has ", batch.columns, " columns; the model takes ",
                                 limits.columns, " elements for each patch"));
  }
  const int64_t images = batch.num_sequences();
  if (images > limits.max_sequences) {
    throw InvalidArgument(
        concat("the batch has ", images,
               " images; the session is planned for max_sequences = ", limits.max_sequences));
  }
  int64_t patches = 0;
  int64_t tokens = 0;
  for (int64_t i = 0; i < images; ++i) {
    const int32_t rows = batch.grids[static_cast<size_t>(2 * i)];
    const int32_t columns = batch.grids[static_cast<size_t>(2 * i + 1)];
    if (rows < 0 || columns < 0 || rows > kMostSide || columns > kMostSide) {
      throw InvalidArgument(concat("grids[", i, "] is ", rows, " x ", columns, "; expected 0 to ",
                                   kMostSide, " rows and columns"));
    }
    const int64_t length = tokens_of(rows, columns, limits.prefix);
    if (length > limits.max_seqlen) {
      throw InvalidArgument(
          concat("grids[", i, "] is ", rows, " x ", columns, ", which makes ", length,
                 " tokens; the model takes max_seqlen = ", limits.max_seqlen, " at most"));
    }
    patches += int64_t{rows} * columns;
    tokens += length;
  }
  if (patches != batch.num_patches()) {
    throw InvalidArgument(concat("features has ", batch.num_patches(), " rows, but the grids have ",
                                 patches, " patches"));
  }
  if (tokens > limits.max_tokens) {
    throw InvalidArgument(
        concat("the batch has ", tokens,
               " tokens; the session is planned for max_tokens = ", limits.max_tokens));
  }
}

}  // namespace packhorse
