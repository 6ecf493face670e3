// The operators of a device on host arrays: for tests, and for people who build models of their
// own. Each call allocates what it needs; a Session is what plans its memory and runs fast.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "ops/backend.h"
#include "ops/ops.h"
#include "packhorse/error.h"
#include "packhorse/packed_tokens.h"

namespace py = pybind11;

namespace packhorse {
namespace {

using FloatArray = py::array_t<float, py::array::c_style | py::array::forcecast>;
using IntArray = py::array_t<int32_t, py::array::c_style | py::array::forcecast>;
using Norm = std::tuple<FloatArray, std::optional<FloatArray>, float>;  // gamma, beta, eps
using Linear = std::tuple<FloatArray, std::optional<FloatArray>>;       // weight, bias

template <class T>
T choose(const char* what, const std::string& name, const std::map<std::string, T>& choices) {
  const auto found = choices.find(name);
  if (found != choices.end()) return found->second;
  std::string known;
  for (const auto& [text, value] : choices) known += (known.empty() ? "" : ", ") + text;
  throw InvalidArgument(std::string(what) + " is '" + name + "', expected one of " + known);
}

Activation parse_activation(const std::string& name) {
  return choose<Activation>("activation", name,
                            {{"none", Activation::kNone},
                             {"gelu", Activation::kGelu},
                             {"gelu_tanh", Activation::kGeluTanh},
                             {"relu", Activation::kRelu},
                             {"silu", Activation::kSilu},
                             {"tanh", Activation::kTanh},
                             {"sigmoid", Activation::kSigmoid}});
}

Pooling parse_pooling(const std::string& name) {
  return choose<Pooling>("pooling", name,
                         {{"cls", Pooling::kCls},
                          {"mean", Pooling::kMean},
                          {"max", Pooling::kMax},
                          {"last", Pooling::kLast},
                          {"mean_sqrt", Pooling::kMeanSqrt}});
}

int64_t rows_of(const char* name, const py::array& array) {
  if (array.ndim() != 2) {
    throw InvalidArgument(std::string(name) + " has " + std::to_string(array.ndim()) +
                          " dimensions, expected 2");
  }
  return array.shape(0);
}

/// What one call puts on the device; freed with it.
class Call {
 public:
  Call(Ops& ops, DType dtype) : ops_(ops), dtype_(dtype) {}

  void* allocate(size_t bytes) {
    memory_.push_back(ops_.allocate(bytes));
    return memory_.back()->data();
  }

  /// The bytes of a host array as they are.
  void* put_raw(const py::array& array) {
    void* data = allocate(static_cast<size_t>(array.nbytes()));
    ops_.upload(data, array.data(), static_cast<size_t>(array.nbytes()));
    return data;
  }

  TensorView matrix(int64_t rows, int64_t columns, DType dtype) {
    const auto elements = static_cast<size_t>(rows * columns);
    return TensorView(allocate(elements * size_of(dtype)), dtype, rows, columns);
  }
  TensorView result(int64_t rows, int64_t columns) { return matrix(rows, columns, dtype_); }

  /// A host matrix in the operators' dtype.
  TensorView put(const char* name, const FloatArray& array) {
    const int64_t rows = rows_of(name, array);
    const TensorView host = matrix(rows, array.shape(1), DType::kFloat32);
    ops_.upload(host.data, array.data(), static_cast<size_t>(array.nbytes()));
    if (dtype_ == DType::kFloat32) return host;
    const TensorView converted = result(rows, array.shape(1));
    ops_.cast({.x = host, .out = converted});
    return converted;
  }
  TensorView put(const char* name, const std::optional<FloatArray>& array) {
    return array ? put(name, *array) : TensorView();
  }

  const float* put_vector(const char* name, const std::optional<FloatArray>& array, int64_t size) {
    if (!array) return nullptr;
    if (array->ndim() != 1 || array->shape(0) != size) {
      throw InvalidArgument(std::string(name) + ": expected a vector of " + std::to_string(size));
    }
    return static_cast<const float*>(put_raw(*array));
  }

  const int32_t* put_ids(const char* name, const std::optional<IntArray>& array, int64_t size) {
    if (!array) return nullptr;
    if (array->ndim() != 1 || array->shape(0) != size) {
      throw InvalidArgument(std::string(name) + ": expected a vector of " + std::to_string(size));
    }
    return static_cast<const int32_t*>(put_raw(*array));
  }

  LinearWeight put_linear(const char* name, const Linear& layer) {
    const auto& [weight, bias] = layer;
    LinearWeight result;
    result.out_features = rows_of(name, weight);
    result.in_features = weight.shape(1);
    result.dtype = dtype_;
    void* packed = allocate(ops_.linear_bytes(result.in_features, result.out_features, dtype_));
    ops_.pack_linear(weight.data(), result.in_features, result.out_features, dtype_, packed);
    result.data = packed;
    result.bias = put_vector("bias", bias, result.out_features);
    return result;
  }

  NormWeight put_norm(const std::optional<Norm>& norm, NormKind kind, int64_t size) {
    if (!norm) return {};
    const auto& [gamma, beta, eps] = *norm;
    return {.kind = kind,
            .gamma = put_vector("gamma", gamma, size),
            .beta = put_vector("beta", beta, size),
            .eps = eps};
  }

  BatchView put_batch(const IntArray& cu_seqlens, int64_t tokens) {
    const PackedTokens batch{.ids = {},
                             .cu_seqlens = {cu_seqlens.data(), size_t(cu_seqlens.size())},
                             .type_ids = {},
                             .position_ids = {}};
    check_offsets(batch.cu_seqlens, tokens);
    return {.num_tokens = tokens,
            .num_sequences = batch.num_sequences(),
            .max_seqlen = batch.max_seqlen(),
            .cu_seqlens = static_cast<const int32_t*>(put_raw(cu_seqlens))};
  }

  FloatArray get(TensorView rows) {
    if (rows.dtype != DType::kFloat32) {
      const TensorView converted = matrix(rows.rows(), rows.columns(), DType::kFloat32);
      ops_.cast({.x = rows, .out = converted});
      rows = converted;
    }
    FloatArray host({rows.rows(), rows.columns()});
    ops_.download(host.mutable_data(), rows.data, static_cast<size_t>(host.nbytes()));
    ops_.synchronize();
    return host;
  }

 private:
  Ops& ops_;
  const DType dtype_;
  std::vector<std::unique_ptr<DeviceMemory>> memory_;
};

class Operators {
 public:
  Operators(const std::string& device, const std::string& dtype, int threads)
      : ops_(make_ops(parse_device(device), {.threads = threads})), dtype_(parse_dtype(dtype)) {
    ops_->check_dtype(dtype_);
  }

  FloatArray gemm(const FloatArray& x, const FloatArray& weight,
                  const std::optional<FloatArray>& bias, const std::string& activation,
                  const std::optional<FloatArray>& residual, const std::optional<Norm>& norm) {
    Call call(*ops_, dtype_);
    LinearArgs args;
    args.x = call.put("x", x);
    args.weight = call.put_linear("weight", {weight, bias});
    args.activation = parse_activation(activation);
    args.residual = call.put("residual", residual);
    args.norm = call.put_norm(norm, NormKind::kLayer, args.weight.out_features);
    args.out = call.result(args.x.rows(), args.weight.out_features);
    args.workspace = call.allocate(ops_->linear_workspace(args.x.rows(), args.weight.in_features,
                                                          args.weight.out_features, dtype_));
    ops_->linear(args);
    return call.get(args.out);
  }

  FloatArray feed_forward(const FloatArray& x, const Linear& up, const Linear& down,
                          const std::string& activation, const std::optional<FloatArray>& residual,
                          const std::optional<Norm>& norm) {
    Call call(*ops_, dtype_);
    FeedForwardArgs args;
    args.x = call.put("x", x);
    args.up = call.put_linear("up", up);
    args.down = call.put_linear("down", down);
    args.activation = parse_activation(activation);
    args.residual = call.put("residual", residual);
    args.norm = call.put_norm(norm, NormKind::kLayer, args.down.out_features);
    args.out = call.result(args.x.rows(), args.down.out_features);
    args.workspace = call.allocate(ops_->feed_forward_workspace(
        args.x.rows(), args.up.in_features, args.up.out_features, false, dtype_));
    ops_->feed_forward(args);
    return call.get(args.out);
  }

  FloatArray attention(const FloatArray& q, const FloatArray& k, const FloatArray& v,
                       const IntArray& cu_seqlens_q, const IntArray& cu_seqlens_k, int num_heads,
                       int num_kv_heads, float scale, bool causal, int window_left,
                       int window_right, const std::optional<FloatArray>& alibi_slopes,
                       const std::optional<FloatArray>& bucket_table, int max_distance,
                       bool bidirectional) {
    Call call(*ops_, dtype_);
    AttentionArgs args;
    args.q = call.put("q", q);
    args.k = call.put("k", k);
    args.v = call.put("v", v);
    args.queries = call.put_batch(cu_seqlens_q, args.q.rows());
    args.keys = call.put_batch(cu_seqlens_k, args.k.rows());
    args.num_heads = num_heads;
    args.num_kv_heads = num_kv_heads;
    args.head_dim = num_heads > 0 ? static_cast<int32_t>(args.q.columns() / num_heads) : 0;
    args.scale = scale;
    args.mask = {.causal = causal, .window_left = window_left, .window_right = window_right};
    if (alibi_slopes) {
      args.term.kind = ScoreTermKind::kAlibi;
      args.term.slopes = call.put_vector("alibi_slopes", alibi_slopes, num_heads);
    } else if (bucket_table) {
      args.term.kind = ScoreTermKind::kBucketed;
      args.term.num_buckets = static_cast<int32_t>(rows_of("bucket_table", *bucket_table));
      args.term.max_distance = max_distance;
      args.term.bidirectional = bidirectional;
      if (bucket_table->shape(1) != num_heads) {
        throw InvalidArgument("bucket_table: expected [num_buckets, num_heads]");
      }
      args.term.table = static_cast<const float*>(call.put_raw(*bucket_table));
    }
    args.out = call.result(args.q.rows(), args.q.columns());
    args.workspace = call.allocate(
        ops_->attention_workspace(args.q.rows(), args.queries.num_sequences, args.keys.max_seqlen,
                                  num_heads, args.head_dim, dtype_));
    ops_->attention(args);
    return call.get(args.out);
  }

  FloatArray norm(const FloatArray& x, const Norm& norm, const std::optional<FloatArray>& residual,
                  const std::string& kind) {
    Call call(*ops_, dtype_);
    NormArgs args;
    args.x = call.put("x", x);
    args.residual = call.put("residual", residual);
    args.norm = call.put_norm(
        norm,
        choose<NormKind>("kind", kind, {{"layer", NormKind::kLayer}, {"rms", NormKind::kRms}}),
        args.x.columns());
    args.out = call.result(args.x.rows(), args.x.columns());
    ops_->norm(args);
    return call.get(args.out);
  }

  FloatArray embed(const IntArray& ids, const IntArray& cu_seqlens, const FloatArray& word,
                   const std::optional<FloatArray>& position, const std::optional<FloatArray>& type,
                   const std::optional<IntArray>& type_ids,
                   const std::optional<IntArray>& position_ids, int64_t position_offset,
                   const std::optional<Norm>& norm) {
    const PackedTokens tokens{.ids = span(ids),
                              .cu_seqlens = span(cu_seqlens),
                              .type_ids = type_ids ? span(*type_ids) : Span(),
                              .position_ids = position_ids ? span(*position_ids) : Span()};
    const int64_t positions = position ? rows_of("position", *position) - position_offset : 0;
    check(tokens, {.max_tokens = tokens.num_tokens(),
                   .max_sequences = tokens.num_sequences(),
                   .max_seqlen = position ? positions : tokens.num_tokens(),
                   .vocab_size = rows_of("word", word),
                   .type_vocab_size = type ? rows_of("type", *type) : 1,
                   .num_positions = positions});
    Call call(*ops_, dtype_);
    EmbedArgs args;
    args.word = call.put("word", word);
    args.position = call.put("position", position);
    args.type = call.put("type", type);
    args.ids = call.put_ids("ids", ids, tokens.num_tokens());
    args.type_ids = call.put_ids("type_ids", type_ids, tokens.num_tokens());
    args.position_ids = call.put_ids("position_ids", position_ids, tokens.num_tokens());
    args.position_offset = position_offset;
    args.norm = call.put_norm(norm, NormKind::kLayer, args.word.columns());
    args.batch = call.put_batch(cu_seqlens, tokens.num_tokens());
    args.out = call.result(tokens.num_tokens(), args.word.columns());
    ops_->embed(args);
    return call.get(args.out);
  }

  FloatArray pool(const FloatArray& x, const IntArray& cu_seqlens, const std::string& pooling,
                  bool normalize) {
    Call call(*ops_, dtype_);
    PoolArgs args;
    args.x = call.put("x", x);
    args.batch = call.put_batch(cu_seqlens, args.x.rows());
    args.pooling = parse_pooling(pooling);
    args.normalize = normalize;
    args.out = call.matrix(args.batch.num_sequences, args.x.columns(), DType::kFloat32);
    ops_->pool(args);
    return call.get(args.out);
  }

 private:
  using Span = std::span<const int32_t>;
  static Span span(const IntArray& array) {
    return {array.data(), static_cast<size_t>(array.size())};
  }

  std::unique_ptr<Ops> ops_;
  DType dtype_;
};

}  // namespace
}  // namespace packhorse

PYBIND11_MODULE(_ops, module) {
  using packhorse::Operators;
  module.doc() = "The operators of a device on host arrays (see packhorse.ops).";
  py::class_<Operators>(module, "Operators")
      .def(py::init<const std::string&, const std::string&, int>(), py::arg("device"),
           py::arg("dtype"), py::arg("threads"))
      .def("gemm", &Operators::gemm)
      .def("feed_forward", &Operators::feed_forward)
      .def("attention", &Operators::attention)
      .def("norm", &Operators::norm)
      .def("embed", &Operators::embed)
      .def("pool", &Operators::pool);
}
