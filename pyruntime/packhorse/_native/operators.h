// The operators of a device, for tests and for people who build models of their own. Each call
// allocates the memory that it needs and waits for its result. A Session plans its memory and is
// faster.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "packhorse/_native/ops_attention.h"
#include "packhorse/_native/ops_call.h"
#include "packhorse/_native/ops_convolve.h"
#include "packhorse/_native/ops_float8.h"
#include "packhorse/_native/ops_groups.h"
#include "packhorse/_native/ops_heads.h"
#include "packhorse/_native/ops_lora.h"
#include "packhorse/_native/ops_pages.h"
#include "packhorse/_native/ops_sample.h"

namespace packhorse {

template <class T>
T choose(const char* what, const std::string& name, const std::map<std::string, T>& choices) {
  const auto found = choices.find(name);
  if (found != choices.end()) return found->second;
  std::string known;
  for (const auto& [text, value] : choices) known += (known.empty() ? "" : ", ") + text;
  throw InvalidArgument(std::string(what) + " is '" + name + "', expected one of " + known);
}

inline Activation parse_activation(const std::string& name) {
  return choose<Activation>("activation", name,
                            {{"none", Activation::kNone},
                             {"gelu", Activation::kGelu},
                             {"gelu_tanh", Activation::kGeluTanh},
                             {"relu", Activation::kRelu},
                             {"silu", Activation::kSilu},
                             {"tanh", Activation::kTanh},
                             {"sigmoid", Activation::kSigmoid}});
}

inline Pooling parse_pooling(const std::string& name) {
  return choose<Pooling>("pooling", name,
                         {{"cls", Pooling::kCls},
                          {"mean", Pooling::kMean},
                          {"max", Pooling::kMax},
                          {"last", Pooling::kLast},
                          {"mean_sqrt", Pooling::kMeanSqrt},
                          {"weighted_mean", Pooling::kWeightedMean}});
}

// The first argument of every operator: null if arrays lie on the host. If they lie on the device,
// it is the stream with which the call is ordered, or 0 for none.
using Stream = std::optional<StreamHandle>;

class Operators {
 public:
  Operators(const std::string& device, const std::string& dtype, int threads,
            const std::string& attention, bool skinny)
      : shared_(std::make_shared<SharedBackend>()), dtype_(parse_dtype(dtype)) {
    const char* const name = "algorithm";
    shared_->backend =
        make_backend(parse_device(device), {.threads = threads,
                                            .attention = parse_attention_algorithm(attention, name),
                                            .attention_name = name});
    shared_->backend.packer->format(dtype_);
    shared_->skinny = skinny;
  }

  /// The stream of the operators, or 0 on the CPU.
  StreamHandle stream() {
    DeviceIo* io = shared_->backend.device->io();
    return io == nullptr ? 0 : io->stream();
  }

  /// Makes the operators' stream wait for the work that `stream` has been asked for so far.
  void wait_for(StreamHandle stream) {
    if (DeviceIo* io = shared_->backend.device->io()) io->order(stream, io->stream());
  }

  py::object gemm(Stream stream, const Floats& x, const Floats& weight,
                  const std::optional<Floats>& bias, const std::string& activation,
                  const std::optional<Floats>& residual, const std::optional<Norm>& norm) {
    Call call(shared_, dtype_, stream);
    LinearArgs args;
    args.x = call.put("x", x);
    args.weight = call.put_linear("weight", {weight, bias});
    args.activation = parse_activation(activation);
    args.residual = call.put("residual", residual);
    args.norm = call.put_norm(norm, NormKind::kLayer, args.weight.out_features);
    args.out = call.result(args.x.rows(), args.weight.out_features);
    call.quantize(args.x, args.x_scales, args.weight);
    args.workspace = call.allocate(ops().linear_workspace(args));
    ops().linear(args);
    return call.get(args.out);
  }

  py::object feed_forward(Stream stream, const Floats& x, const Linear& up, const Linear& down,
                          const std::string& activation, bool gated,
                          const std::optional<Floats>& residual, const std::optional<Norm>& norm) {
    Call call(shared_, dtype_, stream);
    FeedForwardArgs args;
    args.gated = gated;
    args.x = call.put("x", x);
    args.up = call.put_linear("up", up);
    args.down = call.put_linear("down", down);
    args.activation = parse_activation(activation);
    args.residual = call.put("residual", residual);
    args.norm = call.put_norm(norm, NormKind::kLayer, args.down.out_features);
    args.out = call.result(args.x.rows(), args.down.out_features);
    if (args.up.dtype == DType::kFloat8) args.inner_scale = inner_scale(x, up, gated);
    call.quantize(args.x, args.x_scales, args.up);
    args.workspace = call.allocate(ops().feed_forward_workspace(args));
    ops().feed_forward(args);
    return call.get(args.out);
  }

  bool interleaves_heads() { return ops().interleaves_heads(); }

  // Operators that other headers define, with the arguments that stand there and in ops.pxd.

  py::object gemm_groupwise(Stream stream, const Floats& x, const Floats& values,
                            const Floats& scales, const std::optional<Floats>& minima,
                            const std::optional<Floats>& bias, int bits, int group,
                            const std::string& activation, bool gated,
                            const std::optional<Floats>& residual,
                            const std::optional<IntArray>& input_order) {
    Call call(shared_, dtype_, stream);
    return packhorse::gemm_groupwise(call, ops(), x, values, scales, minima, bias, bits, group,
                                     parse_activation(activation), gated, residual, input_order);
  }

  template <class... Args>
  py::object qkv_rope(const Args&... args) {
    Call call(shared_, dtype_, std::nullopt);
    return packhorse::qkv_rope(call, ops(), args...);
  }

  template <class... Args>
  py::object rope(const Args&... args) {
    Call call(shared_, dtype_, std::nullopt);
    return packhorse::rope(call, ops(), args...);
  }

  template <class... Args>
  py::object append_kv_cache(Stream stream, const Args&... args) {
    Call call(shared_, dtype_, stream);
    return packhorse::append_kv_cache(call, ops(), args...);
  }

  template <class... Args>
  py::object paged_attention(Stream stream, const Args&... args) {
    Call call(shared_, dtype_, stream);
    return packhorse::paged_attention(call, ops(), args...);
  }

  template <class... Args>
  py::object attention(Stream stream, const Args&... args) {
    Call call(shared_, dtype_, stream);
    return packhorse::attention(call, ops(), args...);
  }

  py::object norm(Stream stream, const Floats& x, const Norm& norm,
                  const std::optional<Floats>& residual, const std::string& kind) {
    Call call(shared_, dtype_, stream);
    NormArgs args;
    args.x = call.put("x", x);
    args.residual = call.put("residual", residual);
    args.norm = call.put_norm(
        norm,
        choose<NormKind>("kind", kind, {{"layer", NormKind::kLayer}, {"rms", NormKind::kRms}}),
        args.x.columns());
    args.out = call.result(args.x.rows(), args.x.columns());
    ops().norm(args);
    return call.get(args.out);
  }

  py::object embed(Stream stream, const Ints& ids, const Ints& cu_seqlens, const Floats& word,
                   const std::optional<Floats>& position, const std::optional<Floats>& type,
                   const std::optional<Ints>& type_ids, const std::optional<Ints>& position_ids,
                   int64_t position_offset, const std::optional<Norm>& norm) {
    Call call(shared_, dtype_, stream);
    EmbedArgs args;
    args.word = call.put("word", word);
    args.position = call.put("position", position);
    args.type = call.put("type", type);
    args.position_offset = position_offset;
    // `embed` below refuses a negative offset.
    const int64_t positions =
        position ? args.position.rows() - std::max<int64_t>(position_offset, 0) : 0;
    const auto tokens =
        call.put_tokens(ids, cu_seqlens, type_ids, position_ids,
                        {.max_seqlen = position ? positions : size_of_vector("ids", ids),
                         .vocab_size = args.word.rows(),
                         .type_vocab_size = type ? args.type.rows() : 1,
                         .num_positions = positions});
    args.ids = tokens.ids;
    args.type_ids = tokens.type_ids;
    args.position_ids = tokens.position_ids;
    args.batch = tokens.batch;
    args.norm = call.put_norm(norm, NormKind::kLayer, args.word.columns());
    args.out = call.result(tokens.batch.num_tokens, args.word.columns());
    ops().embed(args);
    return call.get(args.out);
  }

  py::object log_softmax(Stream stream, const Floats& x) {
    Call call(shared_, dtype_, stream);
    LogSoftmaxArgs args;
    args.x = call.put("x", x);
    args.out = call.matrix(args.x.rows(), args.x.columns(), DType::kFloat32);
    ops().log_softmax(args);
    return call.get(args.out);
  }

  py::object pool(Stream stream, const Floats& x, const Ints& cu_seqlens,
                  const std::string& pooling, bool normalize) {
    Call call(shared_, dtype_, stream);
    PoolArgs args;
    args.x = call.put("x", x);
    args.batch = call.put_batch(cu_seqlens, args.x.rows());
    args.pooling = parse_pooling(pooling);
    args.normalize = normalize;
    args.out = call.matrix(args.batch.num_sequences, args.x.columns(), DType::kFloat32);
    ops().pool(args);
    return call.get(args.out);
  }

  py::object sparse_pool(Stream stream, const Floats& x, const Floats& weight,
                         const std::optional<Floats>& bias, const Ints& cu_seqlens, bool sum,
                         bool twice) {
    Call call(shared_, dtype_, stream);
    SparsePoolArgs args;
    args.sum = sum;
    args.twice = twice;
    args.x = call.put("x", x);
    args.weight = call.put_linear("weight", {weight, bias});
    args.batch = call.put_batch(cu_seqlens, args.x.rows());
    args.out = call.matrix(args.batch.num_sequences, args.weight.out_features, DType::kFloat32);
    args.workspace = call.allocate(ops().sparse_pool_workspace(args));
    ops().sparse_pool(args);
    return call.get(args.out);
  }

  template <class... Args>
  py::object add_lora(const Args&... args) {
    Call call(shared_, dtype_, std::nullopt);
    return packhorse::add_lora(call, ops(), args...);
  }

  py::object cca(const FloatArray& latents, const Ints& cu_seqlens,
                 const std::optional<IntArray>& position_ids, const ConvolveWeights& weights,
                 const ConvolveSizes& sizes, const std::optional<Floats>& frequencies,
                 const std::optional<ConvolvePages>& pages) {
    Call call(shared_, dtype_, std::nullopt);
    RopeArgs heads;
    if (frequencies) {
      put_rotation(call, ops(), heads, *frequencies, cu_seqlens, position_ids, latents.shape(0));
    }
    return packhorse::cca(call, ops(), latents, cu_seqlens, weights, sizes, pages, heads);
  }

  py::object sample(const FloatArray& logits, const FloatArray& floats, const IntArray& ints,
                    const LongArray& draws, const IntArray& bias_ends, const IntArray& bias_tokens,
                    const FloatArray& biases, const std::optional<IntArray>& masks,
                    const std::optional<IntArray>& counts, int num_top) {
    Call call(shared_, dtype_, std::nullopt);
    return packhorse::sample(
        call, ops(),
        {logits, floats, ints, draws, bias_ends, bias_tokens, biases, masks, counts, num_top});
  }

 private:
  Ops& ops() { return *shared_->backend.ops; }

  std::shared_ptr<SharedBackend> shared_;
  DType dtype_;
};

}  // namespace packhorse
