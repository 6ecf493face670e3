// Which outputs a model has, of what size, and whether a row of one belongs to a token, to a
// sequence or to a row that the caller chose: everything that handles outputs goes through this.
#pragma once

#include <cstdint>

#include "model/batch.h"
#include "model/spec.h"
#include "packhorse/session.h"

namespace packhorse {

enum class OutputRows : uint8_t { kTokens, kSequences, kPredictions };

struct OutputLayout {
  OutputRows per = OutputRows::kTokens;
  int64_t columns = 0;     // 0: the model has no such output
  bool is_float32 = true;  // or of the model's dtype, as long as it is on the device

  bool exists() const { return columns > 0; }
  /// Rows of the largest batch, and of one batch.
  int64_t rows(const Capacity& capacity) const {
    return choose(capacity.max_tokens, capacity.max_sequences, capacity.max_predictions);
  }
  int64_t rows(const TokenBatch& tokens) const {
    return choose(tokens.batch.num_tokens, tokens.batch.num_sequences, tokens.num_predictions);
  }
  DType dtype(DType model) const { return is_float32 ? DType::kFloat32 : model; }

 private:
  int64_t choose(int64_t tokens, int64_t sequences, int64_t predictions) const {
    switch (per) {
      case OutputRows::kSequences:
        return sequences;
      case OutputRows::kPredictions:
        return predictions;
      case OutputRows::kTokens:
        break;
    }
    return tokens;
  }
};

PerOutput<OutputLayout> output_layouts(const Spec& spec, const Capacity& capacity);

/// Where the outputs of one run lie in the device's memory.
using OutputBuffers = PerOutput<TensorView>;

}  // namespace packhorse
