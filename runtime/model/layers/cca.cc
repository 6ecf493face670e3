#include "model/layers/cca.h"

#include <vector>

#include "core/float_convert.h"

namespace packhorse {
namespace {

class Builder {
 public:
  Builder(const AttentionSpec& spec, const StackLayouts& layouts, const std::string& name,
          LayerPacker& packer)
      : spec_(spec),
        name_(name),
        packer_(packer),
        rows_(layouts.heads(spec.num_heads + spec.num_kv_heads, 0, layouts.paired_columns())),
        stored_(rows_.extent / rows_.size * rows_.stride) {}

  CcaWeights build() {
    CcaWeights result;
    result.depthwise = depthwise();
    result.depthwise_bias = bias("depthwise.bias");
    result.grouped = grouped();
    result.grouped_bias = bias("grouped.bias");
    result.temperature = packer_.array<float>(name_ + "temperature", spec_.num_kv_heads, [&] {
      return reader().read_vector(name_ + "temperature", spec_.num_kv_heads);
    });
    return result;
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
    const int64_t taps = spec_.compression->depthwise_width;
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
    const int64_t taps = spec_.compression->grouped_width;
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

  const AttentionSpec& spec_;
  const std::string name_;
  LayerPacker& packer_;
  const Spread rows_;
  const int64_t stored_;  // channels
};

}  // namespace

CcaWeights build_cca(const AttentionSpec& spec, const StackLayouts& layouts,
                     const std::string& name, LayerPacker& packer) {
  return Builder(spec, layouts, name, packer).build();
}

CcaArgs cca_of(const AttentionSpec& spec, const CcaWeights& weights, const LinearWeight& qkv,
               int64_t head_dim) {
  CcaArgs args;
  args.num_heads = static_cast<int32_t>(spec.num_heads);
  args.num_kv_heads = static_cast<int32_t>(spec.num_kv_heads);
  args.head_dim = static_cast<int32_t>(head_dim);
  args.model_dim = static_cast<int32_t>(spec.head_dim);
  args.depthwise_width = static_cast<int32_t>(spec.compression->depthwise_width);
  args.grouped_width = static_cast<int32_t>(spec.compression->grouped_width);
  args.depthwise = weights.depthwise;
  args.depthwise_bias = weights.depthwise_bias;
  args.grouped = weights.grouped;
  args.grouped_bias = weights.grouped_bias;
  args.temperature = weights.temperature;
  args.delayed_column = static_cast<int32_t>(delayed_column(spec, head_dim));
  // Before a sequence lie hidden states of zeros, of which the projection makes its bias.
  if (qkv.bias != nullptr) args.first_values = qkv.bias + args.mixed_columns();
  return args;
}

}  // namespace packhorse
