#include "model/heads/output_layout.h"

namespace packhorse {

PerOutput<OutputLayout> output_layouts(const Spec& spec, const Capacity& capacity) {
  using enum OutputRows;
  PerOutput<OutputLayout> layouts;
  layouts.hidden = {kTokens, spec.stack().hidden_size, false};
  layouts.embedding = {kSequences, spec.embedding_columns()};
  if (spec.heads.pooler) layouts.pooled = {kSequences, spec.stack().hidden_size, false};
  if (spec.heads.classifier) {
    layouts.logits = {spec.heads.classifier->per_token() ? kTokens : kSequences,
                      spec.heads.classifier->num_labels};
  }
  if (spec.heads.token_weights) layouts.token_weights = {kTokens, 1};
  if (spec.heads.vectors) layouts.vectors = {kTokens, spec.heads.vectors->size()};
  if (spec.heads.masked_lm && spec.heads.masked_lm->sparse)
    layouts.sparse = {kSequences, spec.stack().stem.vocab_size};
  if ((spec.heads.masked_lm || spec.heads.lm) && capacity.max_predictions > 0) {
    layouts.predictions = {kPredictions, spec.stack().stem.vocab_size};
  }
  return layouts;
}

}  // namespace packhorse
