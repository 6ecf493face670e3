// Which outputs a model has, how large they are, and whether a row of an output belongs to a token,
// to a sequence or to a prediction that the caller asked for. All code that handles outputs uses
// this.
#pragma once

#include <cstdint>

#include "model/batch.h"
#include "model/spec/spec.h"
#include "packhorse/session.h"

namespace packhorse {

enum class OutputRows : uint8_t { kTokens, kSequences, kPredictions };

struct OutputLayout {
  OutputRows per = OutputRows::kTokens;
  int64_t columns = 0;     // 0 if the model does not have this output
  bool is_float32 = true;  // if not, it has the model's dtype while on the device

  bool exists() const { return columns > 0; }
  /// The number of rows for the largest batch, and for one batch.
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

/// Where the outputs of one run lie in device memory.
using OutputBuffers = PerOutput<TensorView>;

}  // namespace packhorse
