#include "packhorse/packed_tokens.h"

#include <algorithm>
#include <limits>
#include <string_view>

#include "core/format.h"
#include "packhorse/error.h"

namespace packhorse {
namespace {

/// Checks that all values lie in [0, limit). `bound` is the name of the limit in messages.
void check_range(std::string_view array, std::span<const int32_t> values, std::string_view bound,
                 int64_t limit) {
  // The loop has no branches. Only a failure needs the index, so it is searched for afterwards.
  bool good = true;
  for (const int32_t value : values) good &= (value >= 0) & (value < limit);
  if (good) return;
  const auto bad = std::find_if(values.begin(), values.end(),
                                [limit](int32_t v) { return v < 0 || v >= limit; });
  throw InvalidArgument(concat(array, "[", bad - values.begin(), "] = ", *bad,
                               " is out of range; expected 0 <= value < ", bound, " = ", limit));
}

void check_size(std::string_view array, std::span<const int32_t> values, int64_t num_tokens) {
  if (static_cast<int64_t>(values.size()) != num_tokens) {
    throw InvalidArgument(concat(array, " holds ", values.size(), " values; expected ", num_tokens,
                                 ", one for each token"));
  }
}

void check_features(const PackedTokens& batch, const PackedLimits& limits) {
  if (limits.feature_columns == 0) {
    if (batch.features.empty()) return;
    throw InvalidArgument("features were given, but this model takes token ids alone");
  }
  const auto columns = static_cast<size_t>(limits.feature_columns);
  if (!batch.features.empty() && batch.feature_columns != limits.feature_columns) {
    throw InvalidArgument(concat("features has ", batch.feature_columns,
                                 " columns; the model takes rows of ", limits.feature_columns));
  }
  const auto tokens = std::ranges::count(batch.ids, limits.feature_id);
  if (static_cast<size_t>(tokens) * columns == batch.features.size()) return;
  throw InvalidArgument(concat("features has ", batch.features.size() / columns, " rows, but ids ",
                               "has ", tokens, " tokens ", limits.feature_id,
                               ", which take one each"));
}

}  // namespace

int64_t PackedTokens::max_seqlen() const {
  int32_t longest = 0;
  for (size_t i = 1; i < cu_seqlens.size(); ++i) {
    longest = std::max(longest, cu_seqlens[i] - cu_seqlens[i - 1]);
  }
  return longest;
}

void check_offsets(std::span<const int32_t> cu_seqlens, int64_t num_tokens) {
  if (cu_seqlens.empty()) {
    throw InvalidArgument("cu_seqlens is empty; expected B + 1 offsets, at least [0]");
  }
  if (cu_seqlens[0] != 0) {
    throw InvalidArgument(concat("cu_seqlens[0] = ", cu_seqlens[0], "; expected 0"));
  }
  for (size_t i = 1; i < cu_seqlens.size(); ++i) {
    if (cu_seqlens[i] < cu_seqlens[i - 1]) {
      throw InvalidArgument(concat("cu_seqlens decreases: cu_seqlens[", i, "] = ", cu_seqlens[i],
                                   " after ", cu_seqlens[i - 1]));
    }
  }
  if (cu_seqlens.back() != num_tokens) {
    throw InvalidArgument(concat("cu_seqlens[", cu_seqlens.size() - 1, "] = ", cu_seqlens.back(),
                                 ", but there are ", num_tokens, " tokens"));
  }
}

void check_capacity(int64_t num_tokens, int64_t num_sequences, const PackedLimits& limits) {
  // Offsets are int32, and there is one more offset than there are sequences.
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (num_tokens < 0 || num_tokens > kMost || num_sequences < 0 || num_sequences >= kMost) {
    throw InvalidArgument(concat("the batch has ", num_tokens, " tokens and ", num_sequences,
                                 " sequences; expected 0 to ", kMost, " tokens and fewer than ",
                                 kMost, " sequences"));
  }
  if (num_tokens > limits.max_tokens) {
    throw InvalidArgument(
        concat("the batch has ", num_tokens,
               " tokens; the session is planned for max_tokens = ", limits.max_tokens));
  }
  if (num_sequences > limits.max_sequences) {
    throw InvalidArgument(
        concat("the batch has ", num_sequences,
               " sequences; the session is planned for max_sequences = ", limits.max_sequences));
  }
}

void check_prediction_rows(std::span<const int32_t> rows, int64_t num_tokens,
                           const PackedLimits& limits) {
  if (static_cast<int64_t>(rows.size()) > limits.max_predictions) {
    throw InvalidArgument(
        concat("prediction_rows holds ", rows.size(),
               " rows; the session is planned for max_predictions = ", limits.max_predictions));
  }
  check_range("prediction_rows", rows, "tokens of the batch", num_tokens);
  for (size_t i = 1; i < rows.size(); ++i) {
    if (rows[i] > rows[i - 1]) continue;
    throw InvalidArgument(concat("prediction_rows[", i, "] = ", rows[i], " after ", rows[i - 1],
                                 "; expected each row once, in ascending order"));
  }
}

void check(const PackedTokens& batch, const PackedLimits& limits) {
  check_offsets(batch.cu_seqlens, batch.num_tokens());
  check_capacity(batch.num_tokens(), batch.num_sequences(), limits);
  check_range("ids", batch.ids, "vocab_size", limits.vocab_size);
  if (!batch.type_ids.empty()) {
    check_size("type_ids", batch.type_ids, batch.num_tokens());
    check_range("type_ids", batch.type_ids, "type_vocab_size", limits.type_vocab_size);
  }
  if (!batch.position_ids.empty()) {
    check_size("position_ids", batch.position_ids, batch.num_tokens());
    check_range("position_ids", batch.position_ids, "num_positions", limits.num_positions);
  }
  check_prediction_rows(batch.prediction_rows, batch.num_tokens(), limits);
  check_features(batch, limits);
  if (batch.max_seqlen() > limits.max_seqlen) {
    for (size_t i = 1; i < batch.cu_seqlens.size(); ++i) {
      const int64_t length = batch.cu_seqlens[i] - batch.cu_seqlens[i - 1];
      if (length > limits.max_seqlen) {
        throw InvalidArgument(concat("sequence ", i - 1, " has ", length,
                                     " tokens; the model takes max_seqlen = ", limits.max_seqlen,
                                     " at most"));
      }
    }
  }
}

}  // namespace packhorse
