// A batch without padding: one array holds the tokens of all sequences, another the offset at which
// each sequence begins.
#pragma once

#include <cstdint>
#include <span>

#include "packhorse/export.h"

namespace packhorse {

/// A borrowed view of one packed batch in host memory, with T tokens in B sequences.
///
/// ids              int32[T]    token ids, sequence after sequence
/// cu_seqlens       int32[B+1]  prefix sum of the lengths: first 0, last T, never decreasing
/// type_ids         int32[T]    or empty: all are 0
/// position_ids     int32[T]    or empty: 0, 1, ... from the start of each sequence
/// prediction_rows  int32[M]    ascending: the tokens for which `predictions` are computed
/// features         float32[R, feature_columns]  the input rows of the tokens whose id is that of
///                              `stem.rows` of the model (docs/developer/spec.md), in order; R is
///                              their number
///
/// T = 0, B = 0 and sequences of length 0 are allowed.
struct PACKHORSE_API PackedTokens {
  std::span<const int32_t> ids;
  std::span<const int32_t> cu_seqlens;
  std::span<const int32_t> type_ids;
  std::span<const int32_t> position_ids;
  std::span<const int32_t> prediction_rows = {};
  std::span<const float> features = {};
  int64_t feature_columns = 0;

  int64_t num_tokens() const { return static_cast<int64_t>(ids.size()); }
  int64_t num_sequences() const { return static_cast<int64_t>(cu_seqlens.size()) - 1; }
  /// The length of the longest sequence, or 0 for an empty batch.
  int64_t max_seqlen() const;
};

/// The limits that a model and a session's options set for batches.
struct PackedLimits {
  int64_t max_tokens = 0;
  int64_t max_sequences = 0;
  int64_t max_seqlen = 0;  // tokens of the longest sequence
  int64_t vocab_size = 0;  // ids lie in [0, vocab_size)
  int64_t type_vocab_size = 0;
  int64_t num_positions = 0;  // position_ids lie in [0, num_positions)
  int64_t max_predictions = 0;
  int64_t feature_columns = 0;  // elements of a row of `features`; 0: the model takes none
  int32_t feature_id = -1;      // tokens with this id take a row each
};

/// Checks only the offsets. Throws as `check` does.
PACKHORSE_API void check_offsets(std::span<const int32_t> cu_seqlens, int64_t num_tokens);

/// Checks the sizes of a batch against the limits. Throws as `check` does.
PACKHORSE_API void check_capacity(int64_t num_tokens, int64_t num_sequences,
                                  const PackedLimits& limits);

/// Checks only PackedTokens::prediction_rows. Throws as `check` does.
PACKHORSE_API void check_prediction_rows(std::span<const int32_t> rows, int64_t num_tokens,
                                         const PackedLimits& limits);

/// Checks a whole batch. Throws InvalidArgument naming the array, the index, what was found and
/// what was expected.
PACKHORSE_API void check(const PackedTokens& batch, const PackedLimits& limits);

}  // namespace packhorse
