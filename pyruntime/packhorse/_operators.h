// The operators of a device, for tests and for people who build models of their own. Each call
// allocates the memory that it needs and waits for its result. A Session plans its memory and is
// faster.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "model/positions.h"
#include "packhorse/_ops_call.h"
#include "packhorse/_ops_convolve.h"
#include "packhorse/_ops_lora.h"
#include "packhorse/_ops_sample.h"

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

// The same limit as in a spec: a table has two rows for each distance.
inline constexpr int kMostDistance = 1 << 14;

// The first argument of every operator: null if arrays lie on the host. If they lie on the device,
// it is the stream with which the call is ordered, or 0 for none.
using Stream = std::optional<StreamHandle>;

class Operators {
 public:
  Operators(const std::string& device, const std::string& dtype, int threads,
            const std::string& attention)
      : shared_(std::make_shared<SharedBackend>()), dtype_(parse_dtype(dtype)) {
    const char* const name = "algorithm";
    shared_->backend =
        make_backend(parse_device(device), {.threads = threads,
                                            .attention = parse_attention_algorithm(attention, name),
                                            .attention_name = name});
    shared_->backend.packer->format(dtype_);
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
    args.workspace = call.allocate(ops().feed_forward_workspace(args));
    ops().feed_forward(args);
    return call.get(args.out);
  }

  bool interleaves_heads() { return ops().interleaves_heads(); }

  // The caller gives the rows of weights, and gets the columns of the result, in the device's order
  // (interleaves_heads).
  py::object project_heads(const Floats& x, const Floats& weight, const std::optional<Floats>& bias,
                           const Ints& cu_seqlens, const std::optional<IntArray>& position_ids,
                           int num_heads, int num_kv_heads, int head_dim,
                           const std::optional<Floats>& frequencies,
                           const std::optional<Norm>& q_norm, const std::optional<Norm>& k_norm) {
    Call call(shared_, dtype_, std::nullopt);
    LinearArgs args;
    args.x = call.put("x", x);
    args.weight = call.put_linear("weight", {weight, bias});
    args.out = call.result(args.x.rows(), args.weight.out_features);
    args.workspace = call.allocate(ops().linear_workspace(args));
    RotateHeadsArgs heads;
    heads.num_heads = num_heads;
    heads.num_kv_heads = num_kv_heads;
    heads.head_dim = heads.model_dim = head_dim;
    heads.q = args.out.column_slice(0, int64_t{num_heads} * head_dim);
    heads.k = args.out.column_slice(heads.q.columns(), int64_t{num_kv_heads} * head_dim);
    heads.q_norm = call.put_norm(q_norm, NormKind::kRms, head_dim);
    heads.k_norm = call.put_norm(k_norm, NormKind::kRms, head_dim);
    if (frequencies) {
      put_rotation(call, heads, *frequencies, cu_seqlens, position_ids, args.x.rows());
    }
    ops().project_heads(args, heads);
    return call.get(args.out);
  }

  // Columns of x and of the result are in the device's order (interleaves_heads).
  py::object rotate_heads(const Floats& x, const Ints& cu_seqlens,
                          const std::optional<IntArray>& position_ids, int num_heads, int head_dim,
                          const Floats& frequencies) {
    Call call(shared_, dtype_, std::nullopt);
    RotateHeadsArgs args;
    args.q = call.put("x", x);
    args.k = TensorView(nullptr, args.q.dtype, args.q.rows(), 0);
    args.num_heads = num_heads;
    args.head_dim = args.model_dim = head_dim;
    put_rotation(call, args, frequencies, cu_seqlens, position_ids, args.q.rows());
    ops().rotate_heads(args);
    return call.get(args.q);
  }

  void put_rotation(Call& call, RotateHeadsArgs& heads, const Floats& frequencies,
                    const Ints& cu_seqlens, const std::optional<IntArray>& position_ids,
                    int64_t rows) {
    RotationArgs rotation;
    rotation.dims = static_cast<int32_t>(2 * size_of_vector("frequencies", frequencies));
    rotation.frequencies = call.put_floats("frequencies", frequencies);
    rotation.batch = call.put_batch(cu_seqlens, rows);
    if (position_ids) {
      if (position_ids->ndim() != 1 || position_ids->size() != rows) {
        throw InvalidArgument(concat("position_ids: expected a vector of ", rows));
      }
      rotation.position_ids = call.put_ints(*position_ids);
    }
    rotation.out = call.matrix(rows, ops().rotation_columns(rotation.dims), DType::kFloat32);
    ops().rotation(rotation);
    heads.rotation = rotation.out;
    heads.frequencies = rotation.frequencies;
    heads.dims = rotation.dims;
  }

  // Host pages are copied: what has been written comes back as a pair. Those on the device are
  // written in place. keys and values are [num_pages * num_kv_heads * kPageTokens, head_dim].
  py::object append_kv(Stream stream, const Floats& keys, const Floats& values, const Floats& k,
                       const Floats& v, const IntArray& cu_seqlens, const IntArray& table,
                       const IntArray& kv_lens, int num_kv_heads) {
    Call call(shared_, dtype_, stream);
    AppendKvArgs args;
    args.k = call.put("k", k);
    args.v = call.put("v", v);
    args.batch = call.put_batch(Ints(cu_seqlens), args.k.rows());
    args.num_kv_heads = num_kv_heads;
    args.pages = put_pages(call, keys, values, table, kv_lens, cu_seqlens, num_kv_heads, -1);
    args.head_dim = static_cast<int32_t>(args.pages.keys.columns());
    ops().append_kv(args);
    if (stream) {
      call.finish();
      return py::none();
    }
    const py::object new_keys = call.get(args.pages.keys);
    return py::make_tuple(new_keys, call.get(args.pages.values));
  }

  // Where k and v are given, they are appended first; host pages come back behind the result.
  py::object attention_over_pages(Stream stream, const Floats& q, const Floats& keys,
                                  const Floats& values, const IntArray& cu_seqlens,
                                  const IntArray& table, const IntArray& kv_lens, int num_heads,
                                  int num_kv_heads, float scale, int window_left, float soft_cap,
                                  const std::optional<Floats>& alibi_slopes,
                                  const std::optional<Floats>& k, const std::optional<Floats>& v) {
    Call call(shared_, dtype_, stream);
    AttentionArgs args;
    args.q = call.put("q", q);
    args.queries = call.put_batch(Ints(cu_seqlens), args.q.rows());
    args.keys.num_sequences = args.queries.num_sequences;
    args.num_heads = num_heads;
    args.num_kv_heads = num_kv_heads;
    args.pages =
        put_pages(call, keys, values, table, kv_lens, cu_seqlens, num_kv_heads, window_left);
    args.head_dim = static_cast<int32_t>(args.pages.keys.columns());
    args.scale = scale;
    args.mask = {.causal = true, .window_left = window_left};
    args.soft_cap = soft_cap;
    if (alibi_slopes) {
      args.term.kind = ScoreTermKind::kAlibi;
      args.term.slopes = call.put_vector("alibi_slopes", alibi_slopes, num_heads);
    }
    if (k && v) {
      args.k = call.put("k", *k);
      args.v = call.put("v", *v);
    }
    args.out = call.result(args.q.rows(), args.q.columns());
    if (args.queries.num_sequences > 0) {
      args.workspace = call.allocate(ops().paged_attention_workspace(args));
      ops().attention(args);
    }
    const py::object out = call.get(args.out);
    if (!args.k || stream) return out;
    const py::object written = call.get(args.pages.keys);
    return py::make_tuple(out, written, call.get(args.pages.values));
  }

  // Checks what kernels read without a look: the pages that lie in sight of the last tokens.
  static KvPages put_pages(Call& call, const Floats& keys, const Floats& values,
                           const IntArray& table, const IntArray& kv_lens,
                           const IntArray& cu_seqlens, int num_kv_heads, int window_left) {
    KvPages pages;
    pages.keys = call.put("keys", keys);
    pages.values = call.put("values", values);
    const int64_t sequences = cu_seqlens.size() - 1;
    if (table.ndim() != 2 || table.shape(0) != sequences || kv_lens.size() != sequences) {
      throw InvalidArgument(
          concat("table and kv_lens: expected rows and elements for ", sequences, " sequences"));
    }
    pages.table_stride = table.shape(1);
    const int64_t num_pages =
        num_kv_heads > 0 ? pages.keys.rows() / (num_kv_heads * kPageTokens) : 0;
    for (int64_t b = 0; b < sequences; ++b) {
      const int64_t q_len = cu_seqlens.at(b + 1) - cu_seqlens.at(b);
      const int64_t kv_len = kv_lens.at(b);
      if (kv_len < q_len || kv_len > pages.table_stride * kPageTokens) {
        throw InvalidArgument(concat("kv_lens[", b, "] is ", kv_len, ", expected ", q_len, " to ",
                                     pages.table_stride * kPageTokens, ": ", q_len,
                                     " new tokens, and a table of ", pages.table_stride, " pages"));
      }
      pages.max_kv_len = std::max(pages.max_kv_len, kv_len);
      const int64_t first =
          window_left < 0 ? 0 : std::max<int64_t>(kv_len - q_len - window_left, 0);
      for (int64_t i = first / kPageTokens; q_len > 0 && i * kPageTokens < kv_len; ++i) {
        const int64_t page = table.at(b, i);
        if (page < 0 || page >= num_pages) {
          throw InvalidArgument(concat("table[", b, ", ", i, "] is ", page, ", expected 0 to ",
                                       num_pages - 1, ", a page"));
        }
      }
    }
    pages.table = call.put_ints(table);
    pages.kv_lens = call.put_ints(kv_lens);
    return pages;
  }

  py::object attention(Stream stream, const Floats& q, const Floats& k, const Floats& v,
                       const Ints& cu_seqlens_q, const Ints& cu_seqlens_k, int num_heads,
                       int num_kv_heads, float scale, bool causal, int window_left,
                       int window_right, const std::optional<Floats>& alibi_slopes,
                       const std::optional<Floats>& bucket_table, int max_distance,
                       bool bidirectional, const std::optional<Floats>& position_keys,
                       const std::optional<Floats>& position_queries, int buckets) {
    Call call(shared_, dtype_, stream);
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
      const auto [buckets, heads] = shape_of_matrix("bucket_table", *bucket_table);
      if (heads != num_heads) {
        throw InvalidArgument("bucket_table: expected [num_buckets, num_heads]");
      }
      args.term.kind = ScoreTermKind::kBucketed;
      args.term.num_buckets = static_cast<int32_t>(buckets);
      args.term.max_distance = max_distance;
      args.term.bidirectional = bidirectional;
      args.term.table = call.put_floats("bucket_table", *bucket_table);
    } else if (position_keys || position_queries) {
      put_disentangled(call, args.term, position_keys, position_queries, buckets, max_distance);
    }
    args.out = call.result(args.q.rows(), args.q.columns());
    args.workspace = call.allocate(ops().attention_workspace(args));
    ops().attention(args);
    return call.get(args.out);
  }

  static void put_disentangled(Call& call, ScoreTerm& term,
                               const std::optional<Floats>& position_keys,
                               const std::optional<Floats>& position_queries, int buckets,
                               int max_distance) {
    if (buckets < 0 || buckets == 2 || buckets % 2 != 0 || max_distance < 1 ||
        (buckets > 0 && max_distance < buckets / 2 + 2) || max_distance > kMostDistance ||
        buckets > kMostDistance) {
      throw InvalidArgument(concat("buckets ", buckets, ", max_distance ", max_distance,
                                   ": expected 0 or an even number from 4 on, and a distance of at "
                                   "least half of it and 2, both at most ",
                                   kMostDistance));
    }
    const int64_t slots = 2 * int64_t{buckets > 0 ? buckets : max_distance};
    const auto put = [&](const char* name, const std::optional<Floats>& table) {
      const TensorView rows = call.put(name, table);
      if (rows && rows.rows() != slots) {
        throw InvalidArgument(concat(name, " has ", rows.rows(), " rows, expected ", slots));
      }
      return rows;
    };
    const RelativeSlots relative = relative_slots(buckets, max_distance);
    term.kind = ScoreTermKind::kDisentangled;
    term.position_keys = put("position_keys", position_keys);
    term.position_queries = put("position_queries", position_queries);
    term.slots = call.put_values(relative.slots);
    term.slot_limit = relative.limit;
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

  py::object add_lora(const Floats& out, const Floats& x, const Floats& a, const Floats& b,
                      const IntArray& slots, const IntArray& ranks,
                      const std::optional<IntArray>& parts, int num_parts) {
    Call call(shared_, dtype_, std::nullopt);
    return packhorse::add_lora(call, ops(), out, x, a, b, slots, ranks, parts, num_parts);
  }

  py::object convolve_heads(const FloatArray& latents, const Ints& cu_seqlens,
                            const std::optional<IntArray>& position_ids,
                            const ConvolveWeights& weights, const ConvolveSizes& sizes,
                            const std::optional<Floats>& frequencies,
                            const std::optional<ConvolvePages>& pages) {
    Call call(shared_, dtype_, std::nullopt);
    RotateHeadsArgs heads;
    if (frequencies) {
      put_rotation(call, heads, *frequencies, cu_seqlens, position_ids, latents.shape(0));
    }
    return packhorse::convolve_heads(call, ops(), latents, cu_seqlens, weights, sizes, pages,
                                     heads);
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
