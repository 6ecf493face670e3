#include "model/spec/parse.h"

#include <string>

#include "core/json.h"
#include "packhorse/error.h"

namespace packhorse {
namespace {

constexpr size_t kMaxDepth = 32;  // levels of the JSON

// The decoder of a language model reads what the tables of embeddings have the width of.
void check_lm(const Spec& spec) {
  const StackSpec& stack = spec.stack();
  if (!spec.heads.lm || spec.heads.lm->projection ||
      stack.stem.embedding_size == stack.hidden_size) {
    return;
  }
  throw InvalidArgument(concat("spec: 'heads.lm' has no 'projection', but 'embedding_size' is ",
                               stack.stem.embedding_size, ", 'hidden_size' ", stack.hidden_size));
}

Json parse_document(const std::string& text) {
  try {
    return parse_json(text, kMaxDepth, /*unique_names=*/false);
  } catch (const JsonError& error) {
    if (error.reason() == JsonError::kDepth) {
      throw InvalidArgument(concat("spec: nested more than ", kMaxDepth, " deep"));
    }
    throw InvalidArgument("spec: the text is not valid JSON");
  }
}

void parse_stacks(Fields& fields, Spec& spec) {
  const int64_t format = fields.integer("format", 0, kMaxRows);
  if (format == 1) return parse_format1(fields, spec);
  if (format == 2) return parse_format2(fields, spec);
  throw InvalidArgument(
      concat("spec: 'format' is ", format, ", this runtime reads formats 1 and 2: convert the ",
             "model anew, with the version that is to run it (packhorse convert MODEL FOLDER ",
             "--overwrite)"));
}

}  // namespace

std::vector<const LayerSpec*> StackSpec::weight_sets() const {
  std::vector<const LayerSpec*> sets;
  for (const LayerSpec& layer : layers) {
    const auto set = static_cast<size_t>(layer.weights);
    if (set >= sets.size()) sets.resize(set + 1);
    if (sets[set] == nullptr) sets[set] = &layer;
  }
  return sets;
}

Spec parse_spec(const std::string& json_text) {
  const Json json = parse_document(json_text);
  Fields fields(json, "");
  for (const char* name :
       {"family", "max_length", "pair", "template", "text", "image", "similarity", "pages"})
    fields.ignore(name);
  Spec spec;
  parse_stacks(fields, spec);
  spec.stack().max_seqlen = spec.max_seqlen;
  if (fields.has("heads")) parse_heads(fields.object("heads"), spec.stack(), spec.heads);
  check_lm(spec);
  parse_embedding(fields.object("embedding"), spec.heads);
  parse_quantized(fields, spec);
  fields.done();
  return spec;
}

}  // namespace packhorse
