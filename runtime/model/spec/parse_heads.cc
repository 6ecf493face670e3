#include <string>

#include "model/spec/parse.h"
#include "packhorse/error.h"

namespace packhorse {

namespace {

constexpr int64_t kMaxLabels = int64_t{1} << 20;
constexpr size_t kMaxPoolings = 16;

// Reads the activation of a layer that need not have one.
Activation parse_activation_or_none(Fields& fields) {
  return fields.has("activation") ? parse_activation(fields) : Activation::kNone;
}

// The names of poolings, of which those of patches need a stem of them.
std::vector<Pooling> parse_poolings(Fields& fields, const char* name) {
  return fields.choices<Pooling>(name, kMaxPoolings,
                                 {{"cls", Pooling::kCls},
                                  {"mean", Pooling::kMean},
                                  {"max", Pooling::kMax},
                                  {"last", Pooling::kLast},
                                  {"mean_sqrt", Pooling::kMeanSqrt},
                                  {"weighted_mean", Pooling::kWeightedMean},
                                  {"second", Pooling::kSecond},
                                  {"patch_mean", Pooling::kPatchMean}});
}

void parse_classifier(Fields fields, int64_t vocab_size, HeadsSpec& heads) {
  using Input = ClassifierSpec::Input;
  ClassifierSpec classifier;
  if (fields.has("input") && fields.get("input").is_array()) {
    classifier.input = Input::kPoolings;
    classifier.poolings = parse_poolings(fields, "input");
    classifier.pooled_norm = fields.boolean("norm", false);
    if (classifier.pooled_norm && classifier.poolings.size() != 1) {
      throw InvalidArgument("spec: 'heads.classifier.norm' beside several poolings");
    }
  } else {
    classifier.input = fields.choice<Input>("input", {{"pooler", Input::kPooler},
                                                      {"cls", Input::kCls},
                                                      {"mean", Input::kMean},
                                                      {"last", Input::kLast},
                                                      {"tokens", Input::kTokens}});
  }
  if (classifier.input == Input::kPooler && !heads.pooler) {
    throw InvalidArgument(
        "spec: 'heads.classifier.input' is \"pooler\", but there is no 'heads.pooler'");
  }
  if (classifier.input == Input::kLast) {
    classifier.padding_id =
        static_cast<int32_t>(fields.integer("padding_id", 0, vocab_size - 1, -1));
  }
  classifier.num_labels = fields.count_texts("labels", kMaxLabels);
  if (fields.has("dense")) {
    Fields dense = fields.object("dense");
    if (classifier.input == Input::kPoolings) {
      throw InvalidArgument("spec: 'heads.classifier.dense' beside a list of poolings");
    }
    classifier.dense = parse_activation(dense);
    classifier.dense_bias = dense.boolean("bias", true);
    classifier.dense_norm = dense.boolean("norm", false);
    dense.done();
  }
  classifier.bias = fields.boolean("bias", true);
  fields.ignore("score");
  fields.ignore("problem");
  fields.done();
  heads.classifier = classifier;
}

void parse_masked_lm(Fields fields, HeadsSpec& heads) {
  MaskedLmSpec head;
  head.activation = parse_activation(fields);
  head.dense_bias = fields.boolean("dense_bias", true);
  head.decoder_bias = fields.boolean("decoder_bias", true);
  head.sparse = fields.boolean("sparse", false);
  if (head.sparse) {  // otherwise these fields are errors, as unknown ones are
    if (fields.has("sparse_pooling")) {
      head.sparse_sum = fields.choice<bool>("sparse_pooling", {{"max", false}, {"sum", true}});
    }
    head.sparse_twice = fields.integer("sparse_logs", 1, 2, 1) == 2;
  }
  fields.done();
  heads.masked_lm = head;
}

void parse_lm(Fields fields, HeadsSpec& heads) {
  LmSpec head;
  head.tied = fields.boolean("tied", false);
  head.bias = fields.boolean("bias", false);
  head.projection = fields.boolean("projection", false);
  head.scale = fields.positive_number("scale", 1.0f);
  if (fields.has("soft_cap")) head.soft_cap = fields.positive_number("soft_cap");
  fields.done();
  heads.lm = head;
}

DenseSpec parse_dense(Fields& fields, bool has_bias) {
  DenseSpec layer;
  layer.size = fields.integer("size", 1, kMaxHidden);
  layer.bias = fields.boolean("bias", has_bias);
  layer.residual = fields.boolean("residual", false);
  layer.activation = parse_activation_or_none(fields);
  return layer;
}

std::vector<DenseSpec> parse_dense_layers(Fields& fields) {
  std::vector<DenseSpec> layers;
  if (!fields.has("dense")) return layers;
  for (Fields dense : fields.objects("dense")) {
    layers.push_back(parse_dense(dense, true));
    dense.done();
  }
  return layers;
}

void parse_vectors(Fields fields, HeadsSpec& heads) {
  VectorsSpec vectors;
  vectors.layers = parse_dense_layers(fields);
  vectors.layers.push_back(parse_dense(fields, false));
  vectors.normalize = fields.boolean("normalize", true);
  fields.done();
  heads.vectors = vectors;
}

void parse_probe(Fields fields, int64_t hidden_size, HeadsSpec& heads) {
  ProbeSpec probe;
  probe.num_heads = fields.integer("num_heads", 1, hidden_size);
  if (hidden_size % probe.num_heads != 0 || hidden_size / probe.num_heads > kMostProbeColumns) {
    throw InvalidArgument(concat("spec: '", fields.path("num_heads"), "' is ", probe.num_heads,
                                 ", expected a divisor of 'hidden_size' ", hidden_size,
                                 ", with heads of at most ", kMostProbeColumns, " columns"));
  }
  probe.size = fields.integer("size", 1, kMaxIntermediate);
  probe.activation = parse_activation(fields);
  fields.done();
  heads.probe = probe;
}

}  // namespace

void parse_heads(Fields fields, const StackSpec& stack, HeadsSpec& heads) {
  const int64_t vocab_size = stack.stem.vocab_size;
  for (const char* name : {"masked_lm", "lm"}) {
    if (stack.stem.kind != StemKind::kPatches || !fields.has(name)) continue;
    throw InvalidArgument(
        concat("spec: 'heads.", name, "' beside a stem of patches, which has no vocabulary"));
  }
  if (fields.has("pooler")) {
    Fields pooler = fields.object("pooler");
    heads.pooler = pooler.choice<Activation>("activation", {{"tanh", Activation::kTanh}});
    pooler.done();
  }
  if (fields.has("classifier")) {
    parse_classifier(fields.object("classifier"), vocab_size, heads);
  }
  if (fields.has("masked_lm")) parse_masked_lm(fields.object("masked_lm"), heads);
  if (fields.has("lm")) parse_lm(fields.object("lm"), heads);
  if (fields.has("vectors")) parse_vectors(fields.object("vectors"), heads);
  if (fields.has("probe")) parse_probe(fields.object("probe"), stack.hidden_size, heads);
  heads.token_weights = fields.boolean("token_weights", false);
  fields.done();
}

void parse_embedding(Fields fields, HeadsSpec& heads) {
  EmbeddingSpec& embedding = heads.embedding;
  const Json& pooling = fields.get("pooling");
  embedding.probe = heads.probe && pooling.is_string() && pooling.text() == "probe";
  if (!embedding.probe) embedding.poolings = parse_poolings(fields, "pooling");
  fields.ignore("include_prompt");
  embedding.norm = !embedding.probe && fields.boolean("norm", false);
  if (embedding.norm && embedding.poolings.size() != 1) {
    throw InvalidArgument("spec: 'embedding.norm' beside several poolings");
  }
  embedding.dense = parse_dense_layers(fields);
  embedding.normalize = fields.boolean("normalize");
  fields.done();
}

}  // namespace packhorse
