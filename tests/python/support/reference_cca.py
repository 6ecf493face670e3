"""Compressed convolutional attention up to attention itself: NumPy in float64, for reading."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import reference
from reference import Array


def _causal(x: Array, width: int, before: Array) -> Array:
    """[n, width, columns]: of each row, those before it and itself; `before` the first one."""
    rows = np.concatenate([np.broadcast_to(before, (width - 1, x.shape[1])), x])
    return np.stack([rows[i : i + len(x)] for i in range(width)], axis=1)


def _sequence(
    latents: Array,
    depthwise: tuple[Array, Array],
    grouped: tuple[Array, Array],
    temperature: Array,
    num_heads: int,
    first_values: Array,
) -> tuple[Array, Array, Array]:
    """Queries, keys [n, heads, d] before rotation, and values [n, num_kv_heads * d]."""
    kv = len(temperature)
    d = latents.shape[1] // (num_heads + 2 * kv)
    columns = (num_heads + kv) * d
    mixed, v = latents[:, :columns], latents[:, columns:]
    weight, bias = depthwise
    # Over zeros, the first convolution gives its bias, and so the second begins with that.
    inner = np.einsum("nwc,cw->nc", _causal(mixed, weight.shape[1], np.zeros(columns)), weight)
    inner = inner + bias
    weight, second_bias = grouped
    width = weight.shape[2]
    taps = _causal(inner, width, bias).reshape(len(latents), width, num_heads + kv, d)
    weight = weight.reshape(num_heads + kv, d, d, width)
    out = np.einsum("nwhi,hoiw->nho", taps, weight) + second_bias.reshape(num_heads + kv, d)
    heads = mixed.reshape(len(latents), num_heads + kv, d)
    q, k = heads[:, :num_heads], heads[:, num_heads:]
    mean = (q + np.repeat(k, num_heads // kv, axis=1)) / 2
    q = out[:, :num_heads] + mean
    k = out[:, num_heads:] + mean.reshape(len(latents), kv, num_heads // kv, d).mean(2)
    q, k = (d**0.5 * x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
    half = v.shape[1] // 2
    before = np.concatenate([first_values[None], v])[: len(v)]
    return q, k * temperature[:, None], np.concatenate([v[:, :half], before[:, half:]], axis=1)


def cca(
    latents: Any,
    cu_seqlens: Any,
    depthwise: tuple[Any, Any],
    grouped: tuple[Any, Any],
    temperature: Any,
    num_heads: int,
    frequencies: Any = None,
    position_ids: Any = None,
    first_values: Any = None,
) -> Array:
    """Arguments and result as those of `packhorse.ops.cca`."""
    latents, temperature = np.asarray(latents, np.float64), np.asarray(temperature, np.float64)
    values = len(temperature) * (latents.shape[1] // (num_heads + 2 * len(temperature)))
    first = np.zeros(values) if first_values is None else np.asarray(first_values, np.float64)
    at = reference.positions(cu_seqlens) if position_ids is None else np.asarray(position_ids)
    out = np.zeros(latents.shape)
    for begin, end in itertools.pairwise(cu_seqlens):
        if begin == end:
            continue
        q, k, v = _sequence(latents[begin:end], depthwise, grouped, temperature, num_heads, first)
        if frequencies is not None:
            q, k = (reference.rotate(x, at[begin:end], frequencies) for x in (q, k))
        rows = [x.reshape(end - begin, -1) for x in (q, k, v)]
        out[begin:end] = np.concatenate(rows, axis=1)
    return out
