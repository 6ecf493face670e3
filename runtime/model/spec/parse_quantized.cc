#include <set>
#include <string>
#include <vector>

#include "model/spec/parse.h"
#include "packhorse/error.h"

namespace packhorse {
namespace {

constexpr const char* kDecoder = "lm.decoder";
constexpr const char* kTable = "embeddings.word";
constexpr const char* kDown = "ffn.down";

// The dense layers of a layer's blocks, those together that one operator computes. They are
// quantised together or not at all.
std::vector<std::vector<std::string>> dense_sets(const LayerSpec& layer) {
  std::vector<std::vector<std::string>> sets;
  for (const BlockSpec& block : layer.blocks) {
    if (std::holds_alternative<CrossAttentionSpec>(block.kind)) {
      const std::string name = concat(part_of(block), '.');
      sets.push_back({name + "query"});
      sets.push_back({name + "key", name + "value"});
      sets.push_back({name + "output"});
    } else if (attention_of(block) != nullptr) {
      sets.push_back({"attention.query", "attention.key", "attention.value"});
      sets.push_back({"attention.output"});
    } else if (const auto* feed_forward = std::get_if<FeedForwardSpec>(&block.kind)) {
      sets.push_back({"ffn.up", kDown});
      if (feed_forward->gated) sets.back().insert(sets.back().begin(), "ffn.gate");
    }
  }
  return sets;
}

WeightGroups parse_groups(Fields& fields) {
  WeightGroups groups;
  groups.bits = static_cast<int32_t>(fields.integer("bits", 4, 8));
  groups.size = static_cast<int32_t>(fields.integer("group", 16, 1024));
  groups.minima = fields.boolean("minima");
  groups.ordered = fields.boolean("input_order", false);
  const int32_t smallest = groups.bits == 4 ? 32 : 16;
  if (groups.bits != 4 && groups.bits != 8) {
    throw InvalidArgument(
        concat("spec: 'quantized' has weights of ", groups.bits, " bits, expected 4 or 8"));
  }
  if (groups.size < smallest || (groups.size & (groups.size - 1)) != 0) {
    throw InvalidArgument(concat("spec: 'quantized' has groups of ", groups.size, " with ",
                                 groups.bits, " bits, expected a power of two from ", smallest,
                                 " to 1024"));
  }
  return groups;
}

void check_sets(const Spec& spec, const StackSpec& stack) {
  const std::vector<const LayerSpec*> layers = stack.weight_sets();
  for (size_t i = 0; i < layers.size(); ++i) {
    for (const auto& set : dense_sets(*layers[i])) {
      const std::string first = concat(stack.prefix, "layers.", i, '.', set.front());
      const auto found = spec.quantized.find(first);
      for (const std::string& name : set) {
        const std::string other = concat(stack.prefix, "layers.", i, '.', name);
        if (spec.quantized.contains(first) != spec.quantized.contains(other)) {
          throw InvalidArgument(concat("spec: 'quantized' has one of ", first, " and ", other,
                                       ", expected both or none"));
        }
        // The down projection has an input of its own.
        if (found == spec.quantized.end() || name == kDown) continue;
        if (found->second.ordered == spec.quantized.at(other).ordered) continue;
        throw InvalidArgument(concat("spec: 'quantized' has an input_order for one of ", first,
                                     " and ", other, ", expected both or none"));
      }
    }
  }
}

}  // namespace

void parse_quantized(Fields& fields, Spec& spec) {
  if (!fields.has("quantized")) return;
  std::set<std::string, std::less<>> known = {kDecoder};
  for (const StackSpec& stack : spec.stacks) {
    known.insert(stack.prefix + kTable);
    const std::vector<const LayerSpec*> layers = stack.weight_sets();
    for (size_t i = 0; i < layers.size(); ++i) {
      for (const auto& set : dense_sets(*layers[i])) {
        for (const std::string& name : set) {
          known.insert(concat(stack.prefix, "layers.", i, '.', name));
        }
      }
    }
  }
  for (Fields& entry : fields.objects("quantized")) {
    const WeightGroups groups = parse_groups(entry);
    entry.count_texts("layers", static_cast<int64_t>(known.size()));
    for (const Json& layer : entry.get("layers").array()) {
      const std::string& name = layer.text();
      if (!known.contains(name)) {
        throw InvalidArgument(concat("spec: 'quantized' names ", layer.dump(),
                                     ", expected a dense layer of a block, \"", kDecoder,
                                     "\" or \"", kTable, "\""));
      }
      if (name.ends_with(kTable) && groups.ordered) {
        throw InvalidArgument(
            concat("spec: 'quantized' has an input_order for ", layer.dump(), ", expected none"));
      }
      if (!spec.quantized.emplace(name, groups).second) {
        throw InvalidArgument(concat("spec: 'quantized' names ", layer.dump(), " twice"));
      }
    }
    entry.done();
  }
  for (const StackSpec& stack : spec.stacks) check_sets(spec, stack);
}

}  // namespace packhorse
