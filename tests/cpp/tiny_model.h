// A tiny random model held in memory. Its spec is JSON text.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "packhorse/session.h"

namespace packhorse::test {

/// The model's spec as JSON text. `changes` is a JSON merge patch (RFC 7386): an object whose
/// members replace those of the spec, and whose nulls remove them.
std::string tiny_spec(const std::string& changes = "{}");

/// Any JSON text with a merge patch applied.
std::string patched(const std::string& json, const std::string& changes);

/// The spec with a merge patch of one member: `path` is its name and those of the objects that it
/// lies in, from the outermost on and each after a '/'; `value` is JSON.
std::string tiny_spec_with(const std::string& path, const std::string& value);

/// Returns the spec of tiny_spec() with every head.
std::string spec_of_all_heads();

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
  /// Writes them as a safetensors file.
  void write(const std::string& path) const;

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
