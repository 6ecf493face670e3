#include "model/output_layouts.h"

namespace packhorse {

PerOutput<OutputLayout> output_layouts(const Spec& spec, const Capacity& capacity) {
  using enum OutputRows;
  PerOutput<OutputLayout> layouts;
  layouts.hidden = {kTokens, spec.hidden_size, false};
  layouts.embedding = {kSequences, spec.embedding_columns()};
  if (spec.pooler) layouts.pooled = {kSequences, spec.hidden_size, false};
  if (spec.classifier) {
    layouts.logits = {spec.classifier->per_token() ? kTokens : kSequences,
                      spec.classifier->num_labels};
  }
  if (spec.token_weights) layouts.token_weights = {kTokens, 1};
  if (spec.vectors) layouts.vectors = {kTokens, spec.vectors->size()};
  if (spec.masked_lm && spec.masked_lm->sparse) layouts.sparse = {kSequences, spec.vocab_size};
  if (spec.masked_lm && capacity.max_predictions > 0) {
    layouts.predictions = {kPredictions, spec.vocab_size};
  }
  return layouts;
}

}  // namespace packhorse
