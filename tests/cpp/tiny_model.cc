#include "tiny_model.h"

#include <fstream>
#include <nlohmann/json.hpp>

namespace packhorse::test {

using Json = nlohmann::json;

std::string patched(const std::string& json, const std::string& changes) {
  Json result = Json::parse(json);
  result.merge_patch(Json::parse(changes));
  return result.dump();
}

std::string tiny_spec(const std::string& changes) {
  return patched(R"({
    "format": 1, "family": "test", "vocab_size": 50, "hidden_size": 24, "num_layers": 2,
    "num_heads": 3, "intermediate_size": 40, "type_vocab_size": 2,
    "positions": {"kind": "learned", "count": 32, "offset": 2},
    "norm": {"kind": "layer", "placement": "post", "eps": 1e-5},
    "attention": {"mask": "bidirectional"},
    "ffn": {"kind": "plain", "activation": "gelu"},
    "heads": {"pooler": {"activation": "tanh"}},
    "embedding": {"pooling": "mean", "normalize": true}})",
                 changes);
}

std::string tiny_spec_with(const std::string& pointer, const std::string& value) {
  Json spec = Json::parse(tiny_spec());
  spec[Json::json_pointer(pointer)] = Json::parse(value);
  return spec.dump();
}

std::string spec_of_all_heads() {
  return tiny_spec(R"({
    "heads": {
      "classifier": {"input": "last", "labels": ["a", "b", "c"]},
      "masked_lm": {"activation": "gelu", "sparse": true},
      "vectors": {"size": 11, "bias": true},
      "token_weights": true},
    "embedding": {"dense": [{"size": 21, "activation": "tanh"}, {"size": 5}]}})");
}

void TinyWeights::write(const std::string& path) const {
  Json header = Json::object();
  std::string data;
  for (const auto& [name, view] : views) {
    const std::vector<float>& numbers = values.at(name);
    const size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float));
    header[name] = {{"dtype", "F32"},
                    {"shape", std::vector<int64_t>(view.shape, view.shape + view.rank)},
                    {"data_offsets", {begin, data.size()}}};
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();  // little-endian, as this machine
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof length);
  file << text << data;
}

}  // namespace packhorse::test
