// The operators over the pages of a cache, as Python calls them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "packhorse/_ops_call.h"

namespace packhorse {

// Checks what kernels read without a look: the pages that lie in sight of the last tokens.
inline KvPages put_pages(Call& call, const Floats& keys, const Floats& values,
                         const IntArray& table, const IntArray& kv_lens, const IntArray& cu_seqlens,
                         int num_kv_heads, int window_left) {
  KvPages pages;
  pages.keys = call.put("keys", keys);
  pages.values = call.put("values", values);
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
    if (kv_len < q_len || kv_len > pages.table_stride * kPageTokens) {
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

// Host pages are copied: what has been written comes back as a pair. Those on the device are
// written in place. keys and values are [num_pages * num_kv_heads * kPageTokens, head_dim].
inline py::object append_kv(Call& call, Ops& ops, const Floats& keys, const Floats& values,
                            const Floats& k, const Floats& v, const IntArray& cu_seqlens,
                            const IntArray& table, const IntArray& kv_lens, int num_kv_heads) {
  AppendKvArgs args;
  args.k = call.put("k", k);
  args.v = call.put("v", v);
  args.batch = call.put_batch(Ints(cu_seqlens), args.k.rows());
  args.num_kv_heads = num_kv_heads;
  args.pages = put_pages(call, keys, values, table, kv_lens, cu_seqlens, num_kv_heads, -1);
  args.head_dim = static_cast<int32_t>(args.pages.keys.columns());
  ops.append_kv(args);
  if (call.on_device()) {
    call.finish();
    return py::none();
  }
  const py::object new_keys = call.get(args.pages.keys);
  return py::make_tuple(new_keys, call.get(args.pages.values));
}

// Where k and v are given, they are appended first; host pages come back behind the result.
inline py::object attention_over_pages(Call& call, Ops& ops, const Floats& q, const Floats& keys,
                                       const Floats& values, const IntArray& cu_seqlens,
                                       const IntArray& table, const IntArray& kv_lens,
                                       int num_heads, int num_kv_heads, float scale,
                                       int window_left, float soft_cap,
                                       const std::optional<Floats>& alibi_slopes,
                                       const std::optional<Floats>& k,
                                       const std::optional<Floats>& v) {
  AttentionArgs args;
  args.q = call.put("q", q);
  args.queries = call.put_batch(Ints(cu_seqlens), args.q.rows());
  args.keys.num_sequences = args.queries.num_sequences;
  args.num_heads = num_heads;
  args.num_kv_heads = num_kv_heads;
  args.pages = put_pages(call, keys, values, table, kv_lens, cu_seqlens, num_kv_heads, window_left);
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
    args.workspace = call.allocate(ops.paged_attention_workspace(args));
    ops.attention(args);
  }
  const py::object out = call.get(args.out);
  if (!args.k || call.on_device()) return out;
  const py::object written = call.get(args.pages.keys);
  return py::make_tuple(out, written, call.get(args.pages.values));
}

}  // namespace packhorse
