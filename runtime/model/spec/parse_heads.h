// Parses the parts of a spec that describe the heads.
#pragma once

#include "model/spec/json_fields.h"
#include "model/spec/spec.h"

namespace packhorse {

constexpr int64_t kMaxHidden = int64_t{1} << 20;

Activation parse_activation(Fields& fields);
void parse_heads(Fields fields, int64_t vocab_size, HeadsSpec& heads);
void parse_embedding(Fields fields, EmbeddingSpec& embedding);

}  // namespace packhorse
