#include "model/loading/adapters.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "core/float_convert.h"
#include "core/format.h"
#include "model/layers/cross_attention.h"
#include "model/layers/feed_forward.h"
#include "model/layers/self_attention.h"
#include "packhorse/error.h"

namespace packhorse {
namespace {

constexpr const char* kA = ".lora_a";
constexpr const char* kB = ".lora_b";

// A stack whose layers adapters take, and the one that its cross attention reads, or null.
struct AdaptedStack {
  const StackSpec& spec;
  const StackSpec* source;
};

// The layers of a set of weights, which adapters take in stacks of attention and feed-forward
// blocks alone. One that there is not has no parts.
PerTarget<DenseLayout> layouts_of(const AdaptedStack& stack, const LayerSpec& layer,
                                  const LayerPacker& packer, int64_t set) {
  PerTarget<DenseLayout> layouts;
  const auto put = [&](LoraTarget target, DenseLayout layout) {
    layouts[static_cast<size_t>(target)] = std::move(layout);
  };
  const StackSpec& spec = stack.spec;
  for (const BlockSpec& block : layer.blocks) {
    if (const auto* attention = std::get_if<SelfAttentionSpec>(&block.kind)) {
      put(LoraTarget::kQkv, qkv_layout(spec, *attention, packer, set));
      put(LoraTarget::kOutput, attention_output_layout(spec, *attention, packer, set));
    } else if (const auto* cross = std::get_if<CrossAttentionSpec>(&block.kind)) {
      put(LoraTarget::kCrossQuery, cross_query_layout(spec, *cross, packer, set));
      put(LoraTarget::kCrossKeyValue,
          cross_key_value_layout(spec, *stack.source, *cross, packer, set));
      put(LoraTarget::kCrossOutput, cross_output_layout(spec, *cross, packer, set));
    } else {
      const auto& feed_forward = std::get<FeedForwardSpec>(block.kind);
      put(LoraTarget::kUp, up_layout(spec, feed_forward, packer, set));
      put(LoraTarget::kDown, down_layout(spec, feed_forward, packer, set));
    }
  }
  return layouts;
}

// The stored row of row i of a part.
int64_t stored_row(const Spread& rows, int64_t i) {
  return rows.offset + i / rows.size * rows.stride + rows.place(i % rows.size);
}

std::vector<int32_t> part_table(const DenseLayout& layout) {
  std::vector<int32_t> table(static_cast<size_t>(layout.out_features / kPartColumns));
  for (size_t part = 0; part < layout.parts.size(); ++part) {
    const Spread& rows = layout.parts[part].rows;
    for (int64_t i = 0; i < rows.extent; ++i) {
      table[static_cast<size_t>(stored_row(rows, i) / kPartColumns)] = static_cast<int32_t>(part);
    }
  }
  return table;
}

template <class T>
const T* take_values(const std::string& name, const std::vector<T>& values, Arena& arena,
                     DeviceContext* device) {
  T* data = arena.take_array<T>(name, values.size());
  if (device != nullptr) device->upload(data, values.data(), values.size() * sizeof(T));
  return data;
}

class AdapterReader {
 public:
  AdapterReader(const Spec& spec, const Precision& precision, Backend& backend,
                const AdapterCapacity& capacity, const WeightSource& source)
      : spec_(spec),
        source_(source),
        reader_(source),
        packer_(spec.stack().norm, precision, backend, arena_, &reader_),
        dtype_(precision.floats()),
        max_rank_(capacity.max_rank) {}

  Adapter read() {
    Adapter adapter;
    if (spec_.source() != nullptr) adapter.source = read({*spec_.source(), nullptr});
    adapter.stack = read({spec_.stack(), spec_.source()});
    for (const std::string& name : source_.names()) {
      if (read_.contains(name)) continue;
      throw InvalidArgument(concat("adapter: no layer of this model takes tensor '", name, "'"));
    }
    if (read_.empty()) throw InvalidArgument("adapter: it has no tensors, expected some");
    return adapter;
  }

 private:
  Adapter::Stack read(const AdaptedStack& stack) {
    Adapter::Stack layers;
    // Spec::source() gives the same stack to the check and to the reference.
    // NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage)
    for (const LayerSpec* one : stack.spec.weight_sets()) {
      const auto set = static_cast<int64_t>(layers.size());
      const PerTarget<DenseLayout> all = layouts_of(stack, *one, packer_, set);
      PerTarget<Adapter::Layer>& layer = layers.emplace_back();
      std::ranges::transform(all, layer.begin(), [&](const auto& one) { return read(one); });
    }
    return layers;
  }

  Adapter::Layer read(const DenseLayout& layout) {
    const auto parts = static_cast<int64_t>(layout.parts.size());
    std::vector<float> a(static_cast<size_t>(parts * max_rank_ * layout.in_features));
    std::vector<float> b(static_cast<size_t>(max_rank_ * layout.out_features));
    Adapter::Layer layer;
    for (int64_t p = 0; p < parts; ++p) {
      const Part& part = layout.parts[static_cast<size_t>(p)];
      const int64_t rank =
          read_part(layout, part, a.data() + p * max_rank_ * layout.in_features, b.data());
      layer.rank = std::max(layer.rank, static_cast<int32_t>(rank));
    }
    if (layer.rank == 0) return layer;
    layer.a = converted(layout.name + kA, a);
    layer.b = converted(layout.name + kB, b);
    return layer;
  }

  // Fills in the part's own rows of `a` and its columns of `b`. Returns its rank, or 0.
  int64_t read_part(const DenseLayout& layout, const Part& part, float* a, float* b) {
    const auto from_a = packer_.locate(part, layout.parts, layout.fused, kA);
    const auto from_b = packer_.locate(part, layout.parts, layout.fused, kB);
    if (!reader_.has(from_a.name) && !reader_.has(from_b.name)) return 0;
    const TensorView found = reader_.find(from_a.name);
    const int64_t rank = found.rank == 2 ? found.shape[0] : max_rank_;
    if (rank < 1 || rank > max_rank_) {
      throw InvalidArgument(concat("adapter: tensor '", from_a.name, "' has rank ", rank,
                                   ", expected 1 to ", max_rank_, " (max_adapter_rank)"));
    }
    const int64_t in = layout.columns.extent;
    std::vector<float> values(static_cast<size_t>(rank * in));
    reader_.read_rows(from_a.name, reader_.require(from_a.name, rank, in), 0, rank, values.data());
    for (int64_t r = 0; r < rank; ++r) {
      for (int64_t c = 0; c < in; ++c) {
        const int64_t to =
            c / layout.columns.size * layout.columns.stride + c % layout.columns.size;
        a[r * layout.in_features + to] = values[static_cast<size_t>(r * in + c)];
      }
    }
    values.resize(static_cast<size_t>(from_b.rows * rank));
    reader_.read_rows(from_b.name, reader_.require(from_b.name, from_b.rows, rank), 0, from_b.rows,
                      values.data());
    for (int64_t i = 0; i < part.rows.extent; ++i) {
      const int64_t row = from_b.first + i / part.rows.size * from_b.step + i % part.rows.size;
      float* to = b + stored_row(part.rows, i);
      for (int64_t r = 0; r < rank; ++r) {
        to[r * layout.out_features] = values[static_cast<size_t>(row * rank + r)];
      }
    }
    read_.insert(from_a.name);
    read_.insert(from_b.name);
    return rank;
  }

  std::vector<char> converted(const std::string& name, const std::vector<float>& values) const {
    const auto too_large = [](float value) { return std::abs(value) > 65504.0f; };
    if (dtype_ == DType::kFloat16 && std::ranges::any_of(values, too_large)) {
      throw InvalidArgument(concat("adapter: '", name,
                                   "' holds a number beyond float16's 65504; load the model as "
                                   "bfloat16"));
    }
    std::vector<char> result(values.size() * size_of(dtype_));
    from_float32(values.data(), dtype_, result.data(), values.size());
    return result;
  }

  const Spec& spec_;
  const WeightSource& source_;
  const TensorReader reader_;
  Arena arena_;  // empty: nothing is taken of it
  const LayerPacker packer_;
  const DType dtype_;
  const int64_t max_rank_;
  std::set<std::string> read_;
};

StackSlots take_slots(const AdaptedStack& stack, const Precision& precision, Backend& backend,
                      const AdapterCapacity& capacity, Arena& arena, DeviceContext* device) {
  // Spec::source() gives the same stack to the check and to the reference.
  // NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker)
  const LayerPacker packer(stack.spec.norm, precision, backend, arena, nullptr);
  const int64_t count = capacity.max_adapters;
  const int64_t rank = capacity.max_rank;
  StackSlots slots;
  PerTarget<const int32_t*> tables = {};
  PerTarget<int64_t> table_columns = {};  // layers of one shape share a table
  for (const LayerSpec* one : stack.spec.weight_sets()) {
    const PerTarget<DenseLayout> all =
        layouts_of(stack, *one, packer, static_cast<int64_t>(slots.size()));
    PerTarget<LoraLayer>& layer = slots.emplace_back();
    for (size_t t = 0; t < all.size(); ++t) {
      const DenseLayout& layout = all[t];
      if (layout.parts.empty()) continue;
      const auto parts = static_cast<int64_t>(layout.parts.size());
      if (parts > 1 && layout.out_features != table_columns[t]) {
        table_columns[t] = layout.out_features;
        tables[t] = take_values(layout.name + ".parts", part_table(layout), arena, device);
      }
      if (parts > 1) layer[t].parts = tables[t];
      layer[t].num_parts = static_cast<int32_t>(parts);
      layer[t].max_rank = static_cast<int32_t>(rank);
      layer[t].a = arena.take_matrix(layout.name + kA, count * parts * rank, layout.in_features,
                                     precision.floats());
      layer[t].b = arena.take_matrix(layout.name + kB, count * rank, layout.out_features,
                                     precision.floats());
      layer[t].ranks = take_values(layout.name + ".ranks",
                                   std::vector<int32_t>(static_cast<size_t>(count)), arena, device);
    }
  }
  return slots;
}

void load_layers(const Adapter::Stack& layers, const StackSlots& slots, int32_t slot,
                 DeviceContext& device) {
  const auto put = [&](const TensorView& all, const std::vector<char>& one) {
    device.upload(all.as<char>() + static_cast<size_t>(slot) * one.size(), one.data(), one.size());
  };
  for (size_t i = 0; i < layers.size(); ++i) {
    for (size_t t = 0; t < layers[i].size(); ++t) {
      const Adapter::Layer& from = layers[i][t];
      const LoraLayer& to = slots[i][t];
      if (to.ranks == nullptr) continue;  // the stack has no such layer
      device.upload(const_cast<int32_t*>(to.ranks) + slot, &from.rank, sizeof(from.rank));
      if (from.rank == 0) continue;
      put(to.a, from.a);
      put(to.b, from.b);
    }
  }
}

}  // namespace

AdapterUses uses_of(const Adapter::Stack& stack) {
  AdapterUses uses;
  for (const PerTarget<Adapter::Layer>& layer : stack) {
    for (size_t t = 0; t < layer.size(); ++t) uses.any[t] = uses.any[t] || layer[t].rank > 0;
  }
  uses.up_of_all = std::ranges::all_of(stack, [](const PerTarget<Adapter::Layer>& layer) {
    return layer[static_cast<size_t>(LoraTarget::kUp)].rank > 0;
  });
  return uses;
}

AdapterSlots take_adapter_slots(const Spec& spec, const Precision& precision, Backend& backend,
                                const AdapterCapacity& capacity, Arena& arena,
                                DeviceContext* device) {
  const auto take = [&](const AdaptedStack& stack) {
    return take_slots(stack, precision, backend, capacity, arena, device);
  };
  AdapterSlots slots;
  if (spec.source() != nullptr) slots.source = take({*spec.source(), nullptr});
  slots.stack = take({spec.stack(), spec.source()});
  return slots;
}

Adapter read_adapter(const Spec& spec, const Precision& precision, Backend& backend,
                     const AdapterCapacity& capacity, const WeightSource& source) {
  return AdapterReader(spec, precision, backend, capacity, source).read();
}

void load_adapter(const Adapter& adapter, const AdapterSlots& slots, int32_t slot,
                  DeviceContext& device) {
  load_layers(adapter.source, slots.source, slot, device);
  load_layers(adapter.stack, slots.stack, slot, device);
  device.synchronize();
}

}  // namespace packhorse
