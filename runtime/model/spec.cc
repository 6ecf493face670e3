#include "model/spec.h"

#include <cmath>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "core/format.h"
#include "packhorse/error.h"

namespace packhorse {
namespace {

using Json = nlohmann::json;

// Beyond any model, and low enough that no product of sizes overflows 64 bits.
constexpr int64_t kMaxRows = int64_t{1} << 31;  // of an embedding table
constexpr int64_t kMaxHidden = int64_t{1} << 20;
constexpr int64_t kMaxIntermediate = int64_t{1} << 24;
constexpr int64_t kMaxLayers = int64_t{1} << 14;
constexpr int64_t kMaxHeads = int64_t{1} << 12;
constexpr int64_t kMaxHeadDim = int64_t{1} << 12;

/// One JSON object of the spec. Remembers which fields were read: the rest is refused by `done`.
class Fields {
 public:
  Fields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {
    if (!object.is_object()) fail("", object, "an object");
  }

  bool has(const char* name) const { return object_.contains(name); }

  const Json& get(const char* name) {
    if (!has(name)) throw InvalidArgument(concat("spec: field '", path_, name, "' is missing"));
    read_.insert(name);
    return object_[name];
  }

  int64_t integer(const char* name, int64_t smallest, int64_t largest) {
    const Json& value = get(name);
    if (!value.is_number_integer() || value.get<double>() < static_cast<double>(smallest) ||
        value.get<double>() > static_cast<double>(largest)) {
      fail(name, value, concat("an integer from ", smallest, " to ", largest).c_str());
    }
    return value.get<int64_t>();
  }
  int64_t integer(const char* name, int64_t smallest, int64_t largest, int64_t otherwise) {
    return has(name) ? integer(name, smallest, largest) : otherwise;
  }

  float positive_number(const char* name) {
    const Json& value = get(name);
    if (!value.is_number() || !(value.get<double>() > 0) || !std::isfinite(value.get<float>())) {
      fail(name, value, "a positive number");
    }
    return value.get<float>();
  }

  bool boolean(const char* name) {
    const Json& value = get(name);
    if (!value.is_boolean()) fail(name, value, "true or false");
    return value.get<bool>();
  }

  template <class T>
  T choice(const char* name, std::initializer_list<std::pair<const char*, T>> choices) {
    const Json& value = get(name);
    std::string known;
    for (const auto& [text, result] : choices) {
      if (value.is_string() && value.get_ref<const std::string&>() == text) return result;
      known += concat(known.empty() ? "" : ", ", "\"", text, "\"");
    }
    fail(name, value, concat("one of ", known).c_str());
  }

  Fields object(const char* name) { return Fields(get(name), path_ + name + "."); }
  void ignore(const char* name) { read_.insert(name); }

  void done() const {
    for (const auto& [name, value] : object_.items()) {
      if (!read_.contains(name)) {
        throw InvalidArgument(
            concat("spec: field '", path_, name, "' is not known to this runtime"));
      }
    }
  }

 private:
  [[noreturn]] void fail(const char* name, const Json& found, const char* expected) const {
    throw InvalidArgument(
        concat("spec: '", path_, name, "' is ", found.dump(), ", expected ", expected));
  }

  const Json& object_;
  std::string path_;
  std::set<std::string, std::less<>> read_;
};

Activation parse_activation(Fields& fields) {
  return fields.choice<Activation>("activation", {{"gelu", Activation::kGelu},
                                                  {"gelu_tanh", Activation::kGeluTanh},
                                                  {"relu", Activation::kRelu},
                                                  {"silu", Activation::kSilu},
                                                  {"tanh", Activation::kTanh}});
}

void parse_sizes(Fields& fields, Spec& spec) {
  spec.vocab_size = fields.integer("vocab_size", 1, kMaxRows);
  spec.hidden_size = fields.integer("hidden_size", 1, kMaxHidden);
  spec.num_layers = fields.integer("num_layers", 0, kMaxLayers);
  spec.num_heads = fields.integer("num_heads", 1, kMaxHeads);
  spec.num_kv_heads = fields.integer("num_kv_heads", 1, kMaxHeads, spec.num_heads);
  if (spec.num_heads % spec.num_kv_heads != 0) {
    throw InvalidArgument(concat("spec: 'num_heads' ", spec.num_heads,
                                 " is not a multiple of 'num_kv_heads' ", spec.num_kv_heads));
  }
  if (!fields.has("head_dim") && spec.hidden_size % spec.num_heads != 0) {
    throw InvalidArgument(concat("spec: 'hidden_size' ", spec.hidden_size,
                                 " is not a multiple of 'num_heads' ", spec.num_heads,
                                 " and 'head_dim' is not given"));
  }
  spec.head_dim = fields.integer("head_dim", 1, kMaxHeadDim, spec.hidden_size / spec.num_heads);
  spec.intermediate_size = fields.integer("intermediate_size", 1, kMaxIntermediate);
  spec.type_vocab_size = fields.integer("type_vocab_size", 0, kMaxRows, 0);
}

void parse_positions(Fields fields, Spec& spec) {
  spec.position_kind = fields.choice<PositionKind>("kind", {{"learned", PositionKind::kLearned}});
  spec.num_positions = fields.integer("count", 1, kMaxRows);
  spec.position_offset = fields.integer("offset", 0, kMaxRows, 0);
  if (spec.position_offset >= spec.num_positions) {
    throw InvalidArgument(concat("spec: 'positions.offset' ", spec.position_offset,
                                 " leaves none of the ", spec.num_positions, " positions"));
  }
  fields.done();
}

void parse_norm(Fields fields, Spec& spec) {
  spec.norm_kind = fields.choice<NormKind>("kind", {{"layer", NormKind::kLayer}});
  spec.norm_placement = fields.choice<NormPlacement>("placement", {{"post", NormPlacement::kPost}});
  spec.norm_eps = fields.positive_number("eps");
  fields.done();
}

void parse_embedding(Fields fields, Spec& spec) {
  spec.pooling = fields.choice<Pooling>("pooling", {{"cls", Pooling::kCls},
                                                    {"mean", Pooling::kMean},
                                                    {"max", Pooling::kMax},
                                                    {"last", Pooling::kLast},
                                                    {"mean_sqrt", Pooling::kMeanSqrt}});
  spec.normalize = fields.boolean("normalize");
  fields.done();
}

}  // namespace

Spec parse_spec(const std::string& json_text) {
  const Json json = Json::parse(json_text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) throw InvalidArgument("spec: the text is not valid JSON");
  Fields fields(json, "");
  if (fields.integer("format", 0, kMaxRows) != 1) {
    throw InvalidArgument(
        concat("spec: 'format' is ", fields.get("format").dump(), ", this runtime reads format 1"));
  }
  fields.ignore("family");
  fields.ignore("max_length");

  Spec spec;
  parse_sizes(fields, spec);
  parse_positions(fields.object("positions"), spec);
  const int64_t positions_left = spec.num_positions - spec.position_offset;
  spec.max_seqlen = fields.integer("max_seqlen", 1, kMaxRows, positions_left);
  if (spec.max_seqlen > positions_left) {
    throw InvalidArgument(concat("spec: 'max_seqlen' is ", spec.max_seqlen, ", the position table ",
                                 "serves at most ", positions_left));
  }
  parse_norm(fields.object("norm"), spec);

  Fields attention = fields.object("attention");
  attention.choice<bool>("mask", {{"bidirectional", true}});
  attention.done();

  Fields feed_forward = fields.object("ffn");
  spec.feed_forward_kind =
      feed_forward.choice<FeedForwardKind>("kind", {{"plain", FeedForwardKind::kPlain}});
  spec.activation = parse_activation(feed_forward);
  feed_forward.done();

  if (fields.has("heads")) {
    Fields heads = fields.object("heads");
    if (heads.has("pooler")) {
      Fields pooler = heads.object("pooler");
      spec.pooler = pooler.choice<Activation>("activation", {{"tanh", Activation::kTanh}});
      pooler.done();
    }
    heads.done();
  }
  parse_embedding(fields.object("embedding"), spec);
  fields.done();
  return spec;
}

}  // namespace packhorse
