// The operators over the pages of a cache, as Python calls them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "core/float8.h"
#include "packhorse/_native/ops_call.h"

namespace packhorse {

// keys and values [num_pages * num_kv_heads * kPageTokens, head_dim] and, where they are numbers of
// e4m3, their scales [num_pages * num_kv_heads, kPageTokens].
struct PageArrays {
  Floats keys, values;
  std::optional<Floats> key_scales, value_scales;
};

// Numbers of e4m3 as their bytes.
inline TensorView put_float8(Call& call, const char* name, const Floats& array) {
  const auto [rows, columns] = shape_of_matrix(name, array);
  const auto* host = std::get_if<FloatArray>(&array);
  if (host == nullptr) {
    throw InvalidArgument(concat(name, " lie on the device, expected host memory with scales"));
  }
  std::vector<uint8_t> bytes(static_cast<size_t>(rows * columns));
  std::transform(host->data(), host->data() + bytes.size(), bytes.begin(), float32_to_float8);
  return TensorView(const_cast<uint8_t*>(call.put_values(bytes)), DType::kFloat8, rows, columns);
}

inline TensorView put_scales(Call& call, const char* name, const Floats& array) {
  const auto [rows, columns] = shape_of_matrix(name, array);
  return TensorView(const_cast<float*>(call.put_floats(name, array)), DType::kFloat32, rows,
                    columns);
}

// Checks what kernels read without a look: the pages that lie in sight of the last tokens.
inline PagedKvCache put_pages(Call& call, const PageArrays& arrays, const IntArray& table,
                              const IntArray& kv_lens, const IntArray& cu_seqlens, int num_kv_heads,
                              int window_left, bool causal = true) {
  PagedKvCache pages;
  if (arrays.key_scales && arrays.value_scales) {
    pages.keys = put_float8(call, "keys", arrays.keys);
    pages.values = put_float8(call, "values", arrays.values);
    pages.key_scales = put_scales(call, "key_scales", *arrays.key_scales);
    pages.value_scales = put_scales(call, "value_scales", *arrays.value_scales);
  } else {
    pages.keys = call.put("keys", arrays.keys);
    pages.values = call.put("values", arrays.values);
  }
  const int64_t sequences = cu_seqlens.size() - 1;
  if (table.ndim() != 2 || table.shape(0) != sequences || kv_lens.size() != sequences) {
    throw InvalidArgument(
        concat("table and kv_lens: expected rows and elements for ", sequences, " sequences"));
  }
  pages.table_stride = table.shape(1);
  const int64_t num_pages = num_kv_heads > 0 ? pages.keys.rows() / (num_kv_heads * kPageTokens) : 0;
  for (int64_t b = 0; b < sequences; ++b) {
    const int64_t q_len = cu_seqlens.at(b + 1) - cu_seqlens.at(b);
    const int64_t kv_len = kv_lens.at(b);
    if (kv_len < (causal ? q_len : 0) || kv_len > pages.table_stride * kPageTokens) {
      throw InvalidArgument(concat("kv_lens[", b, "] is ", kv_len, ", expected ", q_len, " to ",
                                   pages.table_stride * kPageTokens, ": ", q_len,
                                   " new tokens, and a table of ", pages.table_stride, " pages"));
    }
    pages.max_kv_len = std::max(pages.max_kv_len, kv_len);
    const int64_t first = window_left < 0 ? 0 : std::max<int64_t>(kv_len - q_len - window_left, 0);
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

// Numbers of e4m3 as float32.
inline py::object get_float8(Call& call, const TensorView& rows) {
  const std::vector<uint8_t> bytes = call.download_bytes(rows);
  FloatArray host(rows.rows(), rows.columns());
  std::transform(bytes.begin(), bytes.end(), host.mutable_data(), float8_to_float32);
  return host;
}

// Copies pages back to the host: keys and values and, if there are any, their scales.
inline std::vector<py::object> get_pages(Call& call, const PagedKvCache& pages) {
  if (pages.keys.dtype != DType::kFloat8) return {call.get(pages.keys), call.get(pages.values)};
  return {get_float8(call, pages.keys), get_float8(call, pages.values), call.get(pages.key_scales),
          call.get(pages.value_scales)};
}

// Host pages are copied: what has been written comes back as a tuple. Those on the device are
// written in place.
inline py::object append_kv_cache(Call& call, Ops& ops, const PageArrays& arrays, const Floats& k,
                                  const Floats& v, const IntArray& cu_seqlens,
                                  const IntArray& table, const IntArray& kv_lens,
                                  int num_kv_heads) {
  AppendKvCacheArgs args;
  args.k = call.put("k", k);
  args.v = call.put("v", v);
  args.batch = call.put_batch(Ints(cu_seqlens), args.k.rows());
  args.num_kv_heads = num_kv_heads;
  args.pages = put_pages(call, arrays, table, kv_lens, cu_seqlens, num_kv_heads, -1);
  args.head_dim = static_cast<int32_t>(args.pages.keys.columns());
  ops.append_kv_cache(args);
  if (call.on_device()) {
    call.finish();
    return py::none();
  }
  return py::make_tuple(get_pages(call, args.pages));
}

// Where k and v are given, they are appended first; host pages come back behind the result.
inline py::object paged_attention(Call& call, Ops& ops, const Floats& q, const PageArrays& arrays,
                                  const IntArray& cu_seqlens, const IntArray& table,
                                  const IntArray& kv_lens, int num_heads, int num_kv_heads,
                                  float scale, bool causal, int window_left, float soft_cap,
                                  const std::optional<Floats>& alibi_slopes,
                                  const std::optional<Floats>& by_distance,
                                  const std::optional<Floats>& k, const std::optional<Floats>& v) {
  AttentionArgs args;
  args.q = call.put("q", q);
  args.queries = call.put_batch(Ints(cu_seqlens), args.q.rows());
  args.keys.num_sequences = args.queries.num_sequences;
  args.num_heads = num_heads;
  args.num_kv_heads = num_kv_heads;
  args.pages =
      put_pages(call, arrays, table, kv_lens, cu_seqlens, num_kv_heads, window_left, causal);
  args.head_dim = static_cast<int32_t>(args.pages.keys.columns());
  args.scale = scale;
  args.mask = {.causal = causal, .window_left = window_left};
  args.soft_cap = soft_cap;
  if (alibi_slopes) {
    args.term.kind = ScoreTermKind::kAlibi;
    args.term.slopes = call.put_vector("alibi_slopes", alibi_slopes, num_heads);
  }
  if (by_distance) {
    const auto [heads, distances] = shape_of_matrix("distance_bias", *by_distance);
    if (heads != num_heads || distances < 2) {
      throw InvalidArgument("distance_bias: expected [num_heads, distances], two or more");
    }
    args.term.kind = ScoreTermKind::kBucketed;
    args.term.max_distance = static_cast<int32_t>(distances - 1);
    args.term.by_distance = call.put_floats("distance_bias", *by_distance);
  }
  if (k && v) {
    args.k = call.put("k", *k);
    args.v = call.put("v", *v);
  }
  args.out = call.result(args.q.rows(), args.q.columns());
  if (args.queries.num_sequences > 0) {
    args.workspace = call.allocate(ops.paged_attention_workspace(args));
    ops.attention(args);
  }
  const py::object out = call.get(args.out);
  if (!args.k || call.on_device()) return out;
  std::vector<py::object> found = get_pages(call, args.pages);
  found.insert(found.begin(), out);
  return py::make_tuple(found);
}

}  // namespace packhorse
