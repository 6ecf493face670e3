// Which outputs a model has, and of what size: everything that handles outputs goes through this.
#pragma once

#include <cstdint>

#include "model/spec.h"
#include "packhorse/session.h"

namespace packhorse {

/// Largest batch that a session holds.
struct Capacity {
  int64_t max_tokens = 0;
  int64_t max_sequences = 0;
  int64_t max_predictions = 0;
};

enum class OutputRows : uint8_t { kTokens, kSequences, kPredictions };

struct OutputLayout {
  OutputRows per = OutputRows::kTokens;
  int64_t columns = 0;     // 0: the model has no such output
  bool is_float32 = true;  // or of the model's dtype, as long as it is on the device

  bool exists() const { return columns > 0; }
  int64_t rows(int64_t tokens, int64_t sequences, int64_t predictions) const {
    return per == OutputRows::kTokens      ? tokens
           : per == OutputRows::kSequences ? sequences
                                           : predictions;
  }
};

PerOutput<OutputLayout> output_layouts(const Spec& spec, const Capacity& capacity);

/// Where the outputs of one run lie in the device's memory.
using OutputBuffers = PerOutput<TensorView>;

}  // namespace packhorse
