#include "tiny_model.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include "core/json.h"

namespace packhorse::test {
namespace {

Json parse(const std::string& text) { return parse_json(text, 100, true); }

Json merged(Json value, Json patch) {
  if (!patch.is_object()) return patch;
  Json::Object members = value.is_object() ? std::move(value.object()) : Json::Object();
  for (Json::Member& change : patch.object()) {
    const auto old = std::ranges::find(members, change.name, &Json::Member::name);
    Json before;
    if (old != members.end()) {
      before = std::move(old->value);
      members.erase(old);
    }
    if (change.value.is_null()) continue;
    members.push_back({change.name, merged(std::move(before), std::move(change.value))});
  }
  return Json(std::move(members));
}

template <class... Integers>
Json array_of(Integers... integers) {
  Json::Array array;
  (array.push_back(Json(static_cast<int64_t>(integers))), ...);
  return Json(std::move(array));
}

}  // namespace

std::string patched(const std::string& json, const std::string& changes) {
  return merged(parse(json), parse(changes)).dump();
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

std::string tiny_spec_with(const std::string& path, const std::string& value) {
  std::string changes = value;
  for (size_t end = path.size(); end != 0;) {
    const size_t slash = path.rfind('/', end - 1);
    changes = "{\"" + path.substr(slash + 1, end - slash - 1) + "\": " + changes + "}";
    end = slash;
  }
  return tiny_spec(changes);
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
  Json::Object header;
  std::string data;
  for (const auto& [name, view] : views) {
    const std::vector<float>& numbers = values.at(name);
    const size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float));
    Json::Object entry;
    entry.push_back({"dtype", Json(std::string("F32"))});
    entry.push_back({"shape", view.rank == 1 ? array_of(view.shape[0])
                                             : array_of(view.shape[0], view.shape[1])});
    entry.push_back({"data_offsets", array_of(begin, data.size())});
    header.push_back({name, Json(std::move(entry))});
  }
  const std::string text = Json(std::move(header)).dump();
  const uint64_t length = text.size();  // little-endian, as this machine
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof length);
  file << text << data;
}

}  // namespace packhorse::test
