#include "cpu/x86/onednn_matmul.h"

#include <algorithm>
#include <array>
#include <optional>

#include "core/format.h"
#include "cpu/common/profile.h"
#include "cpu/isa/kernels.h"
#include "packhorse/error.h"

namespace packhorse::cpu {

using dnnl::memory;

namespace {

std::optional<dnnl::algorithm> algorithm_of(Activation activation) {
  switch (activation) {
    case Activation::kNone:
      break;
    case Activation::kGelu:
      return dnnl::algorithm::eltwise_gelu_erf;
    case Activation::kGeluTanh:
      return dnnl::algorithm::eltwise_gelu_tanh;
    case Activation::kRelu:
      return dnnl::algorithm::eltwise_relu;
    case Activation::kSilu:
      return dnnl::algorithm::eltwise_swish;
    case Activation::kTanh:
      return dnnl::algorithm::eltwise_tanh;
    case Activation::kSigmoid:
      return dnnl::algorithm::eltwise_logistic;
  }
  return std::nullopt;
}

}  // namespace

const dnnl::engine& engine() {
  static const dnnl::engine engine = [] {
    // GemmSet keeps the kernels. oneDNN's own cache only saves work when a second session asks for
    // the same ones.
    dnnl::set_primitive_cache_capacity(256);
    return dnnl::engine(dnnl::engine::kind::cpu, 0);
  }();
  return engine;
}

memory::data_type type_of(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return memory::data_type::bf16;
    case DType::kInt8:
      return memory::data_type::s8;
    case DType::kUInt8:
      return memory::data_type::u8;
    case DType::kInt32:
      return memory::data_type::s32;
    default:
      return memory::data_type::f32;
  }
}

dnnl::matmul::primitive_desc describe(const DenseShape& shape, int64_t rows, int64_t columns,
                                      const memory::desc* weight) {
  const memory::dims weight_dims = {shape.in_features, columns};
  const DType x_dtype = shape.dtype == DType::kInt8 ? DType::kUInt8 : shape.dtype;
  const memory::desc x({rows, shape.in_features}, type_of(x_dtype), memory::format_tag::ab);
  const memory::desc any(weight_dims, type_of(shape.dtype), memory::format_tag::any);
  const memory::desc bias =
      shape.bias ? memory::desc({1, columns}, memory::data_type::f32, memory::format_tag::ab)
                 : memory::desc();
  const memory::desc out({rows, columns}, type_of(shape.out_dtype), memory::format_tag::ab);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (const auto algorithm = algorithm_of(shape.activation)) {
    const float alpha = *algorithm == dnnl::algorithm::eltwise_swish ? 1.0f : 0.0f;
    dnnl::post_ops post_ops;
    post_ops.append_eltwise(*algorithm, alpha, 0.0f);
    attributes.set_post_ops(post_ops);
  }
  return {engine(), x, weight != nullptr ? *weight : any, bias, out, attributes, true};
}

PackedLayout::PackedLayout(int64_t in_features, int64_t out_features, DType dtype)
    : panels(panel_count(out_features, dtype)), columns(panel_width(dtype)) {
  const DType sums = dtype == DType::kInt8 ? DType::kInt32 : DType::kFloat32;
  const DenseShape shape = {
      .in_features = in_features, .out_features = out_features, .dtype = dtype, .out_dtype = sums};
  last_columns = out_features - (panels - 1) * columns;
  const auto last_panel = describe(shape, kBlockRows, last_columns);
  if (!last_panel) {
    throw RuntimeError(concat("oneDNN has no ", name_of(dtype), " matmul of ", in_features, " x ",
                              out_features, " features on this CPU"));
  }
  last = last_panel.weights_desc();
  full = panels > 1 ? describe(shape, kBlockRows, columns).weights_desc() : last;
  panel_bytes = full.get_size();
  stripe_bytes = static_cast<size_t>(full.get_padded_dims()[0] * kStripeColumns) * size_of(dtype);
  bytes = static_cast<size_t>(panels - 1) * panel_bytes + last.get_size();
}

bool is_in_stripes(const PackedLayout& layout, DType dtype) {
  const auto group = static_cast<int64_t>(sizeof(int32_t) / size_of(dtype));
  const memory::dims blocks = {16, kStripeColumns, group};
  const memory::dims order = {0, 1, 0};
  return std::ranges::all_of(std::array{&layout.full, &layout.last}, [&](const memory::desc* desc) {
    if (desc->get_inner_blks() != blocks || desc->get_inner_idxs() != order) return false;
    const memory::dims padded = desc->get_padded_dims();
    const memory::dims strides = {16 * group * kStripeColumns, padded[0] * kStripeColumns};
    return desc->get_strides() == strides && padded[1] % kStripeColumns == 0 &&
           desc->get_size() == static_cast<size_t>(padded[0] * padded[1]) * size_of(dtype);
  });
}

void pack_panel(const PackedLayout& layout, const void* weight, DType from_dtype, int64_t panel,
                void* packed) {
  const bool last = panel + 1 == layout.panels;
  const int64_t in_features = layout.last.get_dims()[0];
  const memory::desc plain({in_features, last ? layout.last_columns : layout.columns},
                           type_of(from_dtype), memory::format_tag::ba);
  const auto begin =
      static_cast<size_t>(panel * layout.columns * in_features) * size_of(from_dtype);
  // oneDNN accepts no pointer to const, but it only reads this memory.
  memory from(plain, engine(), const_cast<char*>(static_cast<const char*>(weight)) + begin);
  memory to(last ? layout.last : layout.full, engine(),
            static_cast<char*>(packed) + static_cast<size_t>(panel) * layout.panel_bytes);
  dnnl::stream stream(engine());
  dnnl::reorder(from, to).execute(stream, from, to);
}

GemmWorkers::GemmWorkers(int count) : scratchpads(static_cast<size_t>(count)) {
  for (int i = 0; i < count; ++i) streams.emplace_back(engine());
}

void GemmWorkers::reserve(size_t bytes) {
  for (auto& scratchpad : scratchpads) {
    if (scratchpad.size() < bytes) scratchpad.resize(bytes);
  }
}

Kernel::Kernel(const dnnl::matmul::primitive_desc& desc, GemmWorkers& workers)
    : primitive_(desc), has_bias_(desc.bias_desc().get_size() != 0) {
  workers.reserve(desc.scratchpad_desc().get_size());
  for (size_t i = 0; i < workers.streams.size(); ++i) {
    const auto bind = [&](const memory::desc& md) { return memory(md, engine(), nullptr); };
    bound_.push_back({bind(desc.src_desc()), bind(desc.weights_desc()),
                      has_bias_ ? bind(desc.bias_desc()) : memory(), bind(desc.dst_desc()),
                      bind(desc.scratchpad_desc())});
  }
}

void Kernel::run(const void* x, const void* weight, const float* bias, void* out, int worker,
                 GemmWorkers& workers) {
  const CpuTimer timer(CpuPart::kProduct);
  const auto index = static_cast<size_t>(worker);
  Bound& bound = bound_[index];
  bound.x.set_data_handle(const_cast<void*>(x));
  bound.weight.set_data_handle(const_cast<void*>(weight));
  bound.out.set_data_handle(out);
  bound.scratchpad.set_data_handle(workers.scratchpads[index].data());
  std::array<dnnl_exec_arg_t, 5> arguments = {{{DNNL_ARG_SRC, bound.x.get()},
                                               {DNNL_ARG_WEIGHTS, bound.weight.get()},
                                               {DNNL_ARG_DST, bound.out.get()},
                                               {DNNL_ARG_SCRATCHPAD, bound.scratchpad.get()},
                                               {}}};
  int count = 4;
  if (has_bias_) {
    bound.bias.set_data_handle(const_cast<float*>(bias));
    arguments[4] = {DNNL_ARG_BIAS, bound.bias.get()};
    count = 5;
  }
  const dnnl_status_t status = dnnl_primitive_execute(
      primitive_.get(), workers.streams[index].get(), count, arguments.data());
  if (status != dnnl_success) {
    throw RuntimeError(concat("oneDNN's matmul failed with status ", static_cast<int>(status)));
  }
}

}  // namespace packhorse::cpu
