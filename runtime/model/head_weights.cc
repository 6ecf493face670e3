#include "model/head_weights.h"

#include "core/format.h"

namespace packhorse {
namespace {

class HeadPacker : LayerPacker {
 public:
  HeadPacker(const Spec& spec, const LayerPacker& packer) : LayerPacker(packer), spec_(spec) {}

  void build(ModelWeights& weights) {
    const int64_t hidden_size = spec_.hidden_size;
    if (spec_.heads.pooler) weights.pooler = dense("pooler", hidden_size, hidden_size);
    if (spec_.heads.classifier) build_classifier(weights, *spec_.heads.classifier);
    if (spec_.heads.token_weights) weights.token_weights = padded("token_weights", 1, true);
    if (spec_.heads.vectors) {
      const std::vector<DenseSpec>& layers = spec_.heads.vectors->layers;
      weights.vectors = build_dense(hidden_size, layers, [&](size_t i) {
        return i + 1 < layers.size() ? concat("vectors.dense.", i) : std::string("vectors");
      });
    }
    if (spec_.heads.masked_lm) build_masked_lm(weights, *spec_.heads.masked_lm);
    weights.embedding_dense = build_dense(spec_.pooled_columns(), spec_.heads.embedding.dense,
                                          [](size_t i) { return concat("embedding.dense.", i); });
  }

 private:
  void build_classifier(ModelWeights& weights, const ClassifierSpec& classifier) {
    if (classifier.dense) {
      weights.classifier_dense =
          dense("classifier.dense", spec_.hidden_size, spec_.hidden_size, classifier.dense_bias);
    }
    if (classifier.dense_norm) weights.classifier_norm = norm("classifier.norm", spec_.hidden_size);
    weights.classifier = padded("classifier", classifier.num_labels, classifier.bias);
  }

  // `name_of`: of layer i.
  template <class NameOf>
  std::vector<DenseWeights> build_dense(int64_t features, const std::vector<DenseSpec>& layers,
                                        NameOf name_of) {
    const std::vector<int64_t> columns = dense_columns(features, layers, ops_);
    std::vector<DenseWeights> result;
    for (size_t i = 0; i < layers.size(); ++i) {
      const DenseSpec& layer = layers[i];
      const auto build = [&](const std::string& name, bool bias) {
        return linear(name, {{name, whole(layer.size), bias}}, columns[i + 1], whole(features),
                      columns[i]);
      };
      DenseWeights built = {build(name_of(i), layer.bias), {}};
      if (layer.residual && layer.size != features) {
        built.residual = build(name_of(i) + ".residual", false);
      }
      result.push_back(built);
      features = layer.size;
    }
    return result;
  }

  void build_masked_lm(ModelWeights& weights, const MaskedLmSpec& head) {
    const int64_t width = spec_.stem.embedding_size;
    weights.masked_lm_dense = dense("masked_lm.dense", width, spec_.hidden_size, head.dense_bias);
    weights.masked_lm_norm = norm("masked_lm.norm", width);
    // As wide as the tables, which take no padding.
    weights.masked_lm_decoder =
        linear("masked_lm.decoder",
               {{"masked_lm.decoder", whole(spec_.stem.vocab_size), head.decoder_bias}},
               padded_features(spec_.stem.vocab_size, ops_), whole(width), width);
  }

  NormWeight norm(const std::string& name, int64_t size) {
    return LayerPacker::norm(name, size, spec_.norm.kind, spec_.norm.eps, spec_.norm.bias);
  }

  LinearWeight dense(const std::string& name, int64_t out_features, int64_t in_features,
                     bool bias = true) {
    return linear(name, {{name, whole(out_features), bias}}, out_features, whole(in_features),
                  in_features);
  }

  // Of hidden states, to any number of features.
  LinearWeight padded(const std::string& name, int64_t out_features, bool bias) {
    return linear(name, {{name, whole(out_features), bias}}, padded_features(out_features, ops_),
                  whole(spec_.hidden_size), spec_.hidden_size);
  }

  const Spec& spec_;
};

}  // namespace

void build_heads(const Spec& spec, const LayerPacker& packer, ModelWeights& weights) {
  HeadPacker(spec, packer).build(weights);
}

}  // namespace packhorse
