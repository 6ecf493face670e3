# cython: language_level=3
"""The operators of a device (see packhorse.ops), one to one: this module converts arguments and
decides nothing.

A new operator is a line in ops.pxd, its C++ signature, and a method here.
"""

import numpy as np

from packhorse._native.ops cimport *

set_maker(np.empty)


def device_view(uintptr_t pointer, shape, str dtype not None):
    """A row-major array that lies on the device, as an argument of operators."""
    return make_device_view(pointer, shape, dtype.encode())


cdef Linear linear(layer) except *:
    """(weight, bias), where bias may be None."""
    weight, bias = layer
    return Linear(Floats(weight), maybe[Floats](bias))


cdef Norm norm_weight(norm) except *:
    """(gamma, beta, eps), where beta may be None."""
    gamma, beta, eps = norm
    return Norm(Floats(gamma), maybe[Floats](beta), <float> eps)


cdef optional[Norm] maybe_norm(norm) except *:
    cdef optional[Norm] result
    if norm is not None:
        result = norm_weight(norm)
    return result


cdef PageArrays page_arrays(tuple pages) except *:
    """(keys, values, scales of keys, scales of values); the latter may be None."""
    cdef PageArrays result
    keys, values, key_scales, value_scales = pages
    result.keys = Floats(keys)
    result.values = Floats(values)
    result.key_scales = maybe[Floats](key_scales)
    result.value_scales = maybe[Floats](value_scales)
    return result


cdef optional[ConvolvePages] maybe_convolve_pages(pages) except *:
    """(rows, slots, table, kv_lens)."""
    cdef optional[ConvolvePages] result
    cdef ConvolvePages found
    if pages is not None:
        rows, found.slots, table, kv_lens = pages
        found.rows = FloatArray(rows)
        found.table = IntArray(table)
        found.kv_lens = IntArray(kv_lens)
        result = found
    return result


cdef optional[uintptr_t] on(stream) except *:
    """None if the arrays of a call lie on the host."""
    cdef optional[uintptr_t] result
    if stream is not None:
        result = <uintptr_t> stream
    return result


cdef class Operators:
    """The operators of one device, in one dtype."""

    cdef unique_ptr[COperators] operators

    def __init__(self, str device not None, str dtype not None, int threads,
                 str attention not None="auto", bint skinny=False):
        self.operators.reset(new COperators(device.encode(), dtype.encode(), threads,
                                            attention.encode(), skinny))

    cdef COperators* _get(self) except NULL:
        if self.operators.get() == NULL:
            raise RuntimeError("these operators were not made for a device")
        return self.operators.get()

    @property
    def stream(self):
        """The stream of the operators, or 0 on the CPU."""
        return self._get().stream()

    @property
    def interleaves_heads(self):
        return self._get().interleaves_heads()

    def wait_for(self, uintptr_t stream):
        """Makes the operators' stream wait for the work that `stream` has been asked for so
        far."""
        self._get().wait_for(stream)

    def gemm(self, stream, x, weight, bias, str activation not None, residual, norm):
        return self._get().gemm(on(stream), Floats(x), Floats(weight), maybe[Floats](bias),
                                activation.encode(), maybe[Floats](residual), maybe_norm(norm))

    def gemm_groupwise(self, stream, x, values, scales, minima, bias, int bits, int group,
                       str activation not None, bint gated, residual, input_order):
        return self._get().gemm_groupwise(on(stream), Floats(x), Floats(values), Floats(scales),
                                          maybe[Floats](minima), maybe[Floats](bias), bits, group,
                                          activation.encode(), gated, maybe[Floats](residual),
                                          maybe[IntArray](input_order))

    def feed_forward(self, stream, x, up, down, str activation not None, bint gated, residual,
                     norm):
        return self._get().feed_forward(on(stream), Floats(x), linear(up), linear(down),
                                        activation.encode(), gated, maybe[Floats](residual),
                                        maybe_norm(norm))

    def qkv_rope(self, x, weight, bias, cu_seqlens, position_ids, int num_heads,
                 int num_kv_heads, int head_dim, frequencies, q_norm, k_norm):
        return self._get().qkv_rope(Floats(x), Floats(weight), maybe[Floats](bias),
                                    Ints(cu_seqlens), maybe[IntArray](position_ids), num_heads,
                                    num_kv_heads, head_dim, maybe[Floats](frequencies),
                                    maybe_norm(q_norm), maybe_norm(k_norm))

    def rope(self, x, cu_seqlens, position_ids, int num_heads, int head_dim, frequencies):
        return self._get().rope(Floats(x), Ints(cu_seqlens), maybe[IntArray](position_ids),
                                num_heads, head_dim, Floats(frequencies))

    def append_kv_cache(self, stream, tuple pages not None, k, v, cu_seqlens, table, kv_lens,
                        int num_kv_heads):
        return self._get().append_kv_cache(on(stream), page_arrays(pages), Floats(k), Floats(v),
                                           IntArray(cu_seqlens), IntArray(table), IntArray(kv_lens),
                                           num_kv_heads)

    def paged_attention(self, stream, q, tuple pages not None, cu_seqlens, table, kv_lens,
                        int num_heads, int num_kv_heads, float scale, bint causal,
                        int window_left, float soft_cap, alibi_slopes, distance_bias, k, v):
        return self._get().paged_attention(on(stream), Floats(q), page_arrays(pages),
                                           IntArray(cu_seqlens), IntArray(table),
                                           IntArray(kv_lens), num_heads, num_kv_heads, scale,
                                           causal, window_left, soft_cap,
                                           maybe[Floats](alibi_slopes),
                                           maybe[Floats](distance_bias), maybe[Floats](k),
                                           maybe[Floats](v))

    def attention(self, stream, q, k, v, cu_seqlens_q, cu_seqlens_k, int num_heads,
                  int num_kv_heads, float scale, bint causal, int window_left, int window_right,
                  alibi_slopes, bucket_table, int max_distance, bint bidirectional, position_keys,
                  position_queries, int buckets):
        return self._get().attention(on(stream), Floats(q), Floats(k), Floats(v),
                                     Ints(cu_seqlens_q), Ints(cu_seqlens_k), num_heads,
                                     num_kv_heads, scale, causal, window_left, window_right,
                                     maybe[Floats](alibi_slopes), maybe[Floats](bucket_table),
                                     max_distance, bidirectional, maybe[Floats](position_keys),
                                     maybe[Floats](position_queries), buckets)

    def norm(self, stream, x, norm, residual, str kind not None):
        return self._get().norm(on(stream), Floats(x), norm_weight(norm), maybe[Floats](residual),
                                kind.encode())

    def embed(self, stream, ids, cu_seqlens, word, position, type, type_ids, position_ids,
              int64_t position_offset, norm):
        return self._get().embed(on(stream), Ints(ids), Ints(cu_seqlens), Floats(word),
                                 maybe[Floats](position), maybe[Floats](type),
                                 maybe[Ints](type_ids), maybe[Ints](position_ids), position_offset,
                                 maybe_norm(norm))

    def log_softmax(self, stream, x):
        return self._get().log_softmax(on(stream), Floats(x))

    def pool(self, stream, x, cu_seqlens, str pooling not None, bint normalize):
        return self._get().pool(on(stream), Floats(x), Ints(cu_seqlens), pooling.encode(),
                                normalize)

    def sparse_pool(self, stream, x, weight, bias, cu_seqlens, bint sum, bint twice):
        return self._get().sparse_pool(on(stream), Floats(x), Floats(weight), maybe[Floats](bias),
                                       Ints(cu_seqlens), sum, twice)

    def add_lora(self, out, x, a, b, slots, ranks, parts, int num_parts):
        return self._get().add_lora(Floats(out), Floats(x), Floats(a), Floats(b), IntArray(slots),
                                    IntArray(ranks), maybe[IntArray](parts), num_parts)

    def cca(self, latents, cu_seqlens, position_ids, weights, sizes, frequencies, pages):
        cdef vector[FloatArray] parts
        for weight in weights:
            parts.push_back(FloatArray(weight))
        return self._get().cca(FloatArray(latents), Ints(cu_seqlens),
                               maybe[IntArray](position_ids), parts, sizes,
                               maybe[Floats](frequencies), maybe_convolve_pages(pages))

    def sample(self, logits, floats, ints, draws, bias_ends, bias_tokens, biases, masks, counts,
               int num_top):
        return self._get().sample(FloatArray(logits), FloatArray(floats), IntArray(ints),
                                  LongArray(draws), IntArray(bias_ends), IntArray(bias_tokens),
                                  FloatArray(biases), maybe[IntArray](masks),
                                  maybe[IntArray](counts), num_top)
