#include "model/loading/stack_layouts.h"

#include <algorithm>

#include "core/format.h"

namespace packhorse {
namespace {

std::string block(int64_t index, const char* name) { return concat("layers.", index, '.', name); }

}  // namespace

StackLayouts::StackLayouts(const Spec& spec, const LayerPacker& packer)
    : spec_(spec),
      attention_(spec.stack.attention),
      packer_(packer),
      width_(packer.width(spec.hidden_size)),
      head_dim_(packer.padded(spec.stack.attention.head_dim)) {}

Spread StackLayouts::heads(int64_t count, int64_t before, int64_t paired) const {
  return {count * attention_.head_dim, attention_.head_dim, head_dim_, before * head_dim_, paired};
}

// Columns that are rotated together lie side by side or in two halves, in the source as its model
// was trained, in memory as the device's kernels rotate them.
int64_t StackLayouts::paired_columns() const {
  if (!attention_.rope) return 0;
  const bool device = packer_.backend().ops->interleaves_heads();
  if (device == attention_.rope->interleaved) return 0;
  return device ? attention_.rope->dims : -attention_.rope->dims;
}

DenseLayout StackLayouts::qkv(int64_t index) const {
  const std::string name = block(index, "attention.");
  const int64_t paired = paired_columns();
  const int64_t queries = attention_.num_heads;
  const int64_t keys = attention_.num_kv_heads;
  std::vector<Part> parts = {{name + "query", heads(queries, 0, paired), attention_.qkv_bias},
                             {name + "key", heads(keys, queries, paired), attention_.key_bias},
                             {name + "value", heads(keys, queries + keys), attention_.qkv_bias}};
  if (attention_.compression) {
    // Half of the values are of the token before.
    Spread& values = parts.back().rows;
    values.extent /= 2;
    values.size = std::min(values.size, values.extent);
    Part delayed = parts.back();
    delayed.name = name + "delayed_value";
    delayed.rows.offset += delayed_column(attention_, head_dim_);
    parts.push_back(delayed);
    return {name + "qkv", parts, (queries + 2 * keys) * head_dim_, whole(spec_.hidden_size),
            width_};
  }
  const std::vector<std::string> names = {parts[0].name, parts[1].name, parts[2].name};
  return {name + "qkv",
          parts,
          (queries + 2 * keys) * head_dim_,
          whole(spec_.hidden_size),
          width_,
          {{names, name + "qkv"}, {names, name + "qkv_by_head", true}}};
}

DenseLayout StackLayouts::output(int64_t index) const {
  const std::string name = block(index, "attention.output");
  const int64_t queries = attention_.num_heads;
  return {name,
          {{name, whole(spec_.hidden_size), attention_.output_bias}},
          width_,
          heads(queries, 0),
          queries * head_dim_};
}

int64_t StackLayouts::padded_inner() const {
  const FeedForwardSpec& spec = spec_.stack.feed_forward;
  if (!spec.gated) return packer_.width(spec.size);
  return (spec.size + kGateBlock - 1) / kGateBlock * kGateBlock;
}

DenseLayout StackLayouts::up(int64_t index) const {
  const FeedForwardSpec& spec = spec_.stack.feed_forward;
  const std::string name = block(index, "ffn.");
  const std::string gate = name + "gate";
  const std::string up = name + "up";
  if (!spec.gated) {
    return {up,
            {{up, whole(spec.size), spec.up_bias}},
            padded_inner(),
            whole(spec_.hidden_size),
            width_};
  }
  return {up,
          {{gate, {spec.size, kGateBlock, 2 * kGateBlock, 0}, spec.up_bias},
           {up, {spec.size, kGateBlock, 2 * kGateBlock, kGateBlock}, spec.up_bias}},
          2 * padded_inner(),
          whole(spec_.hidden_size),
          width_,
          {{{gate, up}, name + "gate_up"}, {{up, gate}, name + "up_gate"}}};
}

DenseLayout StackLayouts::down(int64_t index) const {
  const FeedForwardSpec& spec = spec_.stack.feed_forward;
  const std::string name = block(index, "ffn.down");
  return {name,
          {{name, whole(spec_.hidden_size), spec.down_bias}},
          width_,
          whole(spec.size),
          padded_inner()};
}

DenseLayout StackLayouts::expert_up(int64_t index, int64_t expert) const {
  const FeedForwardSpec& spec = spec_.stack.feed_forward;
  const std::string name = block(index, "ffn.experts.");
  Part gate = {concat(name, expert, ".gate"), {spec.size, kGateBlock, 2 * kGateBlock, 0}, false};
  gate.weight = name + "gate_up";
  gate.slices = spec.moe->num_experts;
  gate.slice_rows = 2 * spec.size;
  gate.first = expert * gate.slice_rows;
  Part up = gate;
  up.name = concat(name, expert, ".up");
  up.rows.offset = kGateBlock;
  up.first += spec.size;
  return {up.name, {gate, up}, 2 * padded_inner(), whole(spec_.hidden_size), width_};
}

DenseLayout StackLayouts::expert_down(int64_t index, int64_t expert) const {
  const FeedForwardSpec& spec = spec_.stack.feed_forward;
  const std::string name = block(index, "ffn.experts.");
  Part down = {concat(name, expert, ".down"), whole(spec_.hidden_size), false};
  down.weight = name + "down";
  down.slices = spec.moe->num_experts;
  down.slice_rows = spec_.hidden_size;
  down.first = expert * down.slice_rows;
  return {down.name, {down}, width_, whole(spec.size), padded_inner()};
}

}  // namespace packhorse
