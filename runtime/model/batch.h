// A batch as the model sees it, and the size of the largest batch that a session holds.
#pragma once

#include <cstdint>

#include "ops/args/common.h"
#include "packhorse/types.h"

namespace packhorse {

/// Number of adapters that lie on the device at once, and the largest rank of each.
struct AdapterCapacity {
  int64_t max_adapters = 0;
  int64_t max_rank = 0;
};

struct Capacity {
  int64_t max_tokens = 0;
  int64_t max_sequences = 0;
  int64_t max_predictions = 0;
  int64_t max_kv_len = 0;  // most keys of a sequence in a cache; 0: without a cache
  int64_t max_source = 0;  // most tokens of a source; 0: without sources
  AdapterCapacity adapters = {};
};

/// A batch in device memory. type_ids and position_ids are null if the batch has none.
struct TokenBatch {
  BatchView batch;
  const int32_t* ids = nullptr;
  const int32_t* type_ids = nullptr;
  const int32_t* position_ids = nullptr;
  const int32_t* prediction_rows = nullptr;  // [num_predictions]
  int64_t num_predictions = 0;
  /// Patches of all images, in a batch of images, which has no ids. They are fewer rows than
  /// num_tokens where a model puts others before them. Where the batch's numbers are bounds, so is
  /// their number. In a batch of tokens the rows that are given beside ids, of which token t takes
  /// row_numbers[t], unless that is below 0.
  TensorView features = {};              // [P, elements of a patch]
  const int32_t* row_numbers = nullptr;  // [T], or null: all tokens take rows of tables
  const int32_t* grids = nullptr;        // [B, 2] rows and columns of patches
  int64_t prefix = 0;                    // rows before the patches of each image that has any
  /// Frames of audio lie in `features`, too: kAudioStride times num_tokens rows. Sequence b has
  /// frames frame_cu_seqlens[b] to frame_cu_seqlens[b + 1] - 1.
  const int32_t* frame_cu_seqlens = nullptr;  // [B + 1]
};

}  // namespace packhorse
