// A tiny random model held in memory.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "packhorse/session.h"

namespace packhorse::test {

inline nlohmann::json tiny_spec() {
  return nlohmann::json::parse(R"({
    "format": 1, "family": "test", "vocab_size": 50, "hidden_size": 24, "num_layers": 2,
    "num_heads": 3, "intermediate_size": 40, "type_vocab_size": 2,
    "positions": {"kind": "learned", "count": 32, "offset": 2},
    "norm": {"kind": "layer", "placement": "post", "eps": 1e-5},
    "attention": {"mask": "bidirectional"},
    "ffn": {"kind": "plain", "activation": "gelu"},
    "heads": {"pooler": {"activation": "tanh"}},
    "embedding": {"pooling": "mean", "normalize": true}})");
}

/// The same spec with every head.
inline nlohmann::json spec_of_all_heads() {
  nlohmann::json spec = tiny_spec();
  spec["heads"]["classifier"] = {{"input", "last"}, {"labels", {"a", "b", "c"}}};
  spec["heads"]["masked_lm"] = {{"activation", "gelu"}, {"sparse", true}};
  spec["heads"]["vectors"] = {{"size", 11}, {"bias", true}};
  spec["heads"]["token_weights"] = true;
  spec["embedding"]["dense"] = {{{"size", 21}, {"activation", "tanh"}}, {{"size", 5}}};
  return spec;
}

/// Random weights for both specs, by name. `source` borrows them.
class TinyWeights {
 public:
  TinyWeights() {
    matrix("embeddings.word", 50, 24);
    matrix("embeddings.position", 32, 24);
    matrix("embeddings.type", 2, 24);
    norm("embeddings.norm");
    for (int i = 0; i < 2; ++i) {
      const std::string layer = "layers." + std::to_string(i);
      for (const char* name : {"query", "key", "value", "output"}) {
        linear(layer + ".attention." + name, 24, 24);
      }
      norm(layer + ".attention.norm");
      linear(layer + ".ffn.up", 40, 24);
      linear(layer + ".ffn.down", 24, 40);
      norm(layer + ".ffn.norm");
    }
    linear("pooler", 24, 24);
    linear("classifier", 3, 24);
    linear("masked_lm.dense", 24, 24);
    norm("masked_lm.norm");
    linear("masked_lm.decoder", 50, 24);
    linear("vectors", 11, 24);
    linear("token_weights", 1, 24);
    linear("embedding.dense.0", 21, 24);
    linear("embedding.dense.1", 5, 21);
  }

  std::map<std::string, std::vector<float>> values;
  std::map<std::string, TensorView> views;

  std::unique_ptr<WeightSource> source() const { return borrow_tensors(views); }

 private:
  void add(const std::string& name, int64_t rows, int64_t columns, float mean) {
    std::vector<float>& data = values[name];
    std::normal_distribution<float> normal(mean, 0.3f);
    for (int64_t i = 0; i < rows * std::max<int64_t>(1, columns); ++i) {
      data.push_back(normal(random_));
    }
    views[name] = columns > 0 ? TensorView(data.data(), DType::kFloat32, rows, columns)
                              : TensorView(data.data(), DType::kFloat32, rows);
  }
  void matrix(const std::string& name, int64_t rows, int64_t columns) {
    add(name, rows, columns, 0);
  }
  void linear(const std::string& name, int64_t out_features, int64_t in_features) {
    matrix(name + ".weight", out_features, in_features);
    add(name + ".bias", out_features, 0, 0);
  }
  void norm(const std::string& name) {
    add(name + ".weight", 24, 0, 1);
    add(name + ".bias", 24, 0, 0);
  }

  std::mt19937 random_{7};
};

}  // namespace packhorse::test
