// Adapters by the C++ API, and the names of their slots.
#include <cmath>
#include <optional>

#include "generation/engine/adapter_names.h"
#include "packhorse/generation.h"
#include "test.h"
#include "tiny_model.h"

using namespace packhorse;
using namespace packhorse::test;

namespace {

std::string causal_spec() {
  return tiny_spec(R"({"attention": {"mask": "causal"}, "heads": {"lm": {"tied": true}}})");
}

GenerationOptions options_for(int64_t max_adapters) {
  GenerationOptions options;
  options.kv_tokens = 256;
  options.max_tokens = 16;
  options.max_sequences = 4;
  options.threads = 1;
  options.max_adapters = max_adapters;
  options.max_adapter_rank = 3;
  return options;
}

// Tensors of an adapter, of which this object holds the numbers.
class TinyAdapter {
 public:
  void add(const std::string& layer, int64_t out, int64_t in, int64_t rank) {
    put(layer + ".lora_a", rank, in);
    put(layer + ".lora_b", out, rank);
  }
  void put(const std::string& name, int64_t rows, int64_t columns) {
    std::vector<float>& data = values[name];
    std::normal_distribution<float> normal(0, 0.4f);
    for (int64_t i = 0; i < rows * columns; ++i) data.push_back(normal(random_));
    views[name] = TensorView(data.data(), DType::kFloat32, rows, columns);
  }
  std::unique_ptr<WeightSource> source() const { return borrow_tensors(views); }

  // Adds B A to the weight of a layer.
  void merge_into(TinyWeights& weights, const std::string& layer) const {
    const TensorView a = views.at(layer + ".lora_a");
    const TensorView b = views.at(layer + ".lora_b");
    std::vector<float>& weight = weights.values.at(layer + ".weight");
    for (int64_t i = 0; i < b.rows(); ++i) {
      for (int64_t j = 0; j < a.columns(); ++j) {
        double sum = 0;
        for (int64_t r = 0; r < a.rows(); ++r) {
          sum += double{b.as<float>()[i * a.rows() + r]} * a.as<float>()[r * a.columns() + j];
        }
        weight[static_cast<size_t>(i * a.columns() + j)] += static_cast<float>(sum);
      }
    }
  }

  std::map<std::string, std::vector<float>> values;
  std::map<std::string, TensorView> views;

 private:
  std::mt19937 random_{3};
};

std::vector<float> generate(GenerationSession& session, const std::string& adapter) {
  Sampling sampling;
  sampling.adapter = adapter;
  sampling.max_new_tokens = 12;
  sampling.logprobs = 0;
  const std::vector<std::vector<int32_t>> prompts = {{1, 2, 3, 4, 5}};
  return session.generate(prompts, sampling)[0][0].logprobs;
}

}  // namespace

TEST(an_adapter_is_what_merging_it_would_give) {
  const TinyWeights weights;
  TinyWeights merged;
  TinyAdapter adapter;
  adapter.add("layers.0.attention.key", 24, 24, 2);
  adapter.add("layers.1.attention.output", 24, 24, 1);
  adapter.add("layers.0.ffn.up", 40, 24, 3);
  adapter.add("layers.1.ffn.down", 24, 40, 2);
  for (const char* layer : {"layers.0.attention.key", "layers.1.attention.output",
                            "layers.0.ffn.up", "layers.1.ffn.down"}) {
    adapter.merge_into(merged, layer);
  }
  const std::string spec = causal_spec();
  const auto plain = GenerationSession::load(spec, *weights.source(), options_for(0));
  const auto other = GenerationSession::load(spec, *merged.source(), options_for(0));
  const auto session = GenerationSession::load(spec, *weights.source(), options_for(2));
  session->add_adapter("mine", *adapter.source());
  CHECK(session->adapters() == std::vector<std::string>{"mine"});
  CHECK(generate(*session, "") == generate(*plain, ""));
  const std::vector<float> found = generate(*session, "mine");
  const std::vector<float> expected = generate(*other, "");
  CHECK(found.size() == 12);
  CHECK(found != generate(*plain, ""));
  for (size_t i = 0; i < found.size(); ++i) CHECK(std::abs(found[i] - expected[i]) < 1e-4f);

  CHECK_THROWS_AS(RuntimeError, plain->add_adapter("mine", *adapter.source()), "max_adapters");
  const auto refused = [&](const TinyAdapter& wrong, const char* message) {
    CHECK_THROWS_WITH(session->add_adapter("wrong", *wrong.source()), message);
  };
  refused({}, "it has no tensors");
  TinyAdapter wrong;
  wrong.add("layers.0.attention.key", 24, 24, 4);
  refused(wrong, "'layers.0.attention.key.lora_a' has rank 4, expected 1 to 3");
  wrong = {};
  wrong.add("layers.0.attention.key", 24, 23, 2);
  refused(wrong, "expected float32, float16 or bfloat16 [2, 24]");
  wrong = {};
  wrong.put("layers.0.attention.key.lora_a", 2, 24);
  refused(wrong, "'layers.0.attention.key.lora_b' [24, 2] is missing");
  wrong = {};
  wrong.add("layers.2.attention.key", 24, 24, 2);
  refused(wrong, "no layer of this model takes tensor 'layers.2.attention.key.lora_a'");
  CHECK(session->adapters().size() == 1);
}

TEST(slots_of_adapters_are_free_when_nobody_uses_them) {
  AdapterNames names(2);
  const int32_t first = names.reserve("a");
  CHECK_THROWS_WITH(names.lease("a"), "expected none: no adapter has been added");
  CHECK_THROWS_WITH(names.reserve("a"), "there is an adapter 'a' already");
  names.publish(first);
  auto lease = names.lease("a");
  CHECK(lease->slot == first);
  const uint64_t salt = lease->salt;
  CHECK(salt != 0);
  names.remove("a");
  CHECK(names.names().empty());
  const int32_t second = names.reserve("a");  // the name is free, the slot is not
  CHECK(second != first);
  names.publish(second);
  CHECK_THROWS_AS(RuntimeError, names.reserve("b"), "'a (removed, still in use)'");
  CHECK(names.lease("a")->slot == second);
  CHECK(names.lease("a")->salt != salt);
  lease.reset();
  CHECK(names.reserve("b") == first);
  names.drop(first);
  names.publish(names.reserve("b"));
  CHECK(names.names() == (std::vector<std::string>{"a", "b"}));
  CHECK(names.lease("b")->salt != salt);
  names.remove("a");
  CHECK_THROWS_WITH(names.remove("a"), "adapter is 'a', expected one of 'b'");
}
