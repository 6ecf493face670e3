#include "model/layers/cca.h"

#include <algorithm>
#include <vector>

#include "core/float_convert.h"
#include "model/layers/adapted_linear.h"
#include "model/layers/residual.h"
#include "model/layers/rope.h"
#include "model/layers/stack_load.h"

namespace packhorse {
namespace {

// The first column of the values, as stored, that comes from the token before.
int64_t delayed_column(const CcaSpec& spec, int64_t head_dim) {
  return spec.num_kv_heads == 1 ? spec.head_dim / 2 : spec.num_kv_heads / 2 * head_dim;
}

// The down-projections, of which that of the values has two halves: the second is of the token
// before.
DenseLayout latents_layout(const StackSpec& stack, const CcaSpec& spec, const LayerPacker& packer,
                           int64_t set) {
  DenseLayout layout = qkv_layout(stack, spec, packer, set);
  layout.fused.clear();
  Spread& values = layout.parts.back().rows;
  values.extent /= 2;
  values.size = std::min(values.size, values.extent);
  Part delayed = layout.parts.back();
  delayed.name = name_of_block(stack, set, "attention.delayed_value");
  delayed.rows.offset += delayed_column(spec, packer.padded(spec.head_dim));
  layout.parts.push_back(delayed);
  return layout;
}

CcaArgs cca_args(const CcaSpec& spec, const CcaWeights& weights, const LayerBuffers& buffers,
                 const BatchView& batch, int64_t head_dim) {
  CcaArgs args = cca_of(spec, weights, head_dim);
  args.latents = buffers.cca.latents.first_rows(batch.num_tokens);
  args.batch = batch;
  args.out = buffers.attention.qkv.first_rows(batch.num_tokens);
  args.workspace = buffers.cca.workspace;
  return args;
}

// The weights of the convolutions.
class Builder {
 public:
  Builder(const StackSpec& stack, const CcaSpec& spec, const std::string& name, LayerPacker& packer)
      : spec_(spec),
        name_(name),
        packer_(packer),
        rows_(place_heads(spec, packer, spec.num_heads + spec.num_kv_heads, 0,
                          paired_columns(stack, packer))),
        stored_(rows_.extent / rows_.size * rows_.stride) {}

  void build(CcaWeights& result) {
    result.depthwise = depthwise();
    result.depthwise_bias = bias("depthwise.bias");
    result.grouped = grouped();
    result.grouped_bias = bias("grouped.bias");
    result.temperature = packer_.array<float>(name_ + "temperature", spec_.num_kv_heads, [&] {
      return reader().read_vector(name_ + "temperature", spec_.num_kv_heads);
    });
  }

 private:
  const TensorReader& reader() const { return *packer_.reader(); }

  // Where a channel of the source lies.
  int64_t place(int64_t channel) const {
    return channel / rows_.size * rows_.stride + rows_.place(channel % rows_.size);
  }

  // All of a tensor [channels, columns, taps].
  std::vector<float> read(const std::string& name, int64_t columns, int64_t taps) const {
    std::vector<float> values(static_cast<size_t>(rows_.extent * columns * taps));
    reader().read_rows(name, reader().require(name, rows_.extent, columns, taps), 0, rows_.extent,
                       values.data());
    return values;
  }

  const float* bias(const char* tensor) {
    return packer_.array<float>(name_ + tensor, stored_, [&] {
      std::vector<float> values(static_cast<size_t>(stored_));
      const std::vector<float> source = reader().read_vector(name_ + tensor, rows_.extent);
      for (int64_t c = 0; c < rows_.extent; ++c) values[size_t(place(c))] = source[size_t(c)];
      return values;
    });
  }

  const float* depthwise() {
    const int64_t taps = spec_.depthwise_width;
    const std::string name = name_ + "depthwise.weight";
    return packer_.array<float>(name, taps * stored_, [&] {
      std::vector<float> values(static_cast<size_t>(taps * stored_));
      const std::vector<float> source = read(name, 1, taps);
      for (size_t i = 0; i < source.size(); ++i) {
        const auto tap = static_cast<int64_t>(i) % taps;
        values[size_t(tap * stored_ + place(static_cast<int64_t>(i) / taps))] = source[i];
      }
      return values;
    });
  }

  TensorView grouped() {
    const int64_t taps = spec_.grouped_width;
    const int64_t head = rows_.stride;  // as stored
    const std::string name = name_ + "grouped.weight";
    const DType dtype = packer_.precision().floats();
    const TensorView result = packer_.arena().take_matrix(name, stored_ * taps, head, dtype);
    if (packer_.reader() == nullptr) return result;
    const std::vector<float> source = read(name, rows_.size, taps);
    std::vector<float> values(static_cast<size_t>(result.size()));
    const float* next = source.data();
    for (int64_t c = 0; c < rows_.extent; ++c) {
      const int64_t to = place(c);
      for (int64_t in = 0; in < rows_.size; ++in) {
        for (int64_t tap = 0; tap < taps; ++tap) {
          const int64_t row = (to / head * taps + tap) * head + rows_.place(in);
          values[size_t(row * head + to % head)] = *next++;
        }
      }
    }
    std::vector<char> converted(values.size() * size_of(dtype));
    from_float32(values.data(), dtype, converted.data(), values.size());
    packer_.backend().device->upload(result.as<char>(), converted.data(), converted.size());
    return result;
  }

  const CcaSpec& spec_;
  const std::string name_;
  LayerPacker& packer_;
  const Spread rows_;
  const int64_t stored_;  // channels
};

}  // namespace

CcaWeights build_cca(const StackLoad& load, const CcaSpec& spec, int64_t set) {
  CcaWeights weights;
  weights.attention =
      build_attention(load, spec, set, latents_layout(load.spec, spec, load.packer, set));
  Builder(load.spec, spec, name_of_block(load.spec, set, "attention."), load.packer).build(weights);
  return weights;
}

CcaArgs cca_of(const CcaSpec& spec, const CcaWeights& weights, int64_t head_dim) {
  CcaArgs args;
  args.num_heads = static_cast<int32_t>(spec.num_heads);
  args.num_kv_heads = static_cast<int32_t>(spec.num_kv_heads);
  args.head_dim = static_cast<int32_t>(head_dim);
  args.model_dim = static_cast<int32_t>(spec.head_dim);
  args.depthwise_width = static_cast<int32_t>(spec.depthwise_width);
  args.grouped_width = static_cast<int32_t>(spec.grouped_width);
  args.depthwise = weights.depthwise;
  args.depthwise_bias = weights.depthwise_bias;
  args.grouped = weights.grouped;
  args.grouped_bias = weights.grouped_bias;
  args.temperature = weights.temperature;
  args.delayed_column = static_cast<int32_t>(delayed_column(spec, head_dim));
  // Before a sequence lie hidden states of zeros, of which the projection makes its bias.
  const float* bias = weights.attention.qkv.bias;
  if (bias != nullptr) args.first_values = bias + args.mixed_columns();
  return args;
}

void take_cca(const StackSpec& spec, const StackWeights& weights, const Capacity& capacity,
              int64_t max_seqlen, const Ops& ops, Arena& arena, LayerBuffers& buffers) {
  const auto& first = std::get<CcaWeights>(weights.layers.front().blocks.front().kind);
  const TensorView& qkv = buffers.attention.qkv;
  CcaBuffers& taken = buffers.cca;
  taken.latents = arena.take_matrix("latents", qkv.rows(), qkv.columns(), qkv.dtype);
  BatchView batch;
  batch.num_tokens = capacity.max_tokens;
  batch.num_sequences = capacity.max_sequences;
  batch.max_seqlen = std::min(capacity.max_tokens, max_seqlen);
  taken.workspace = arena.take(
      "cca_workspace_bytes",
      ops.cca_workspace(cca_args(std::get<CcaSpec>(spec.layers.front().blocks.front().kind), first,
                                 buffers, batch, weights.head_dim)));
}

void compute(const StackRun& run, const Block& block, const CcaWeights& weights) {
  const auto& spec = std::get<CcaSpec>(block.spec.kind);
  LinearArgs projection =
      projection_of(weights.attention, run.buffers, run.rows(run.buffers.cca.latents));
  projection.x = block_input(run, block);
  projection.row_count = run.batch.counts;
  run_linear(run, block, LoraTarget::kQkv, projection);
  CcaArgs args = cca_args(spec, weights, run.buffers, run.batch, run.weights.head_dim);
  run.set_rotation(args, spec);
  args.pages = run.keys.latents(block.layer);
  run.ops.cca(args);
  attend(run, block, weights.attention);
}

void add(const StackRun& run, const Block& block, const CcaWeights& weights) {
  add(run, block, weights.attention);
}

}  // namespace packhorse
