"""Expected results of every operator and the encoder: NumPy in float64, written for reading."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(x: Array) -> Array:
    return np.exp(-np.logaddexp(0, -x))


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "none": lambda x: x,
    "gelu": lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x * _sigmoid(x),
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
}


def _f64(x: Any) -> Array:
    return np.asarray(x, np.float64)


def bfloat16(x: Any) -> npt.NDArray[np.float32]:
    """Rounds to the nearest bfloat16, ties to even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    return (rounded & np.uint32(0xFFFF0000)).view(np.float32)


def linear(x: Any, weight: Any, bias: Any = None, activation: str = "none") -> Array:
    product = _f64(x) @ _f64(weight).T
    return ACTIVATIONS[activation](product if bias is None else product + _f64(bias))


def quantize_weight(weight: Any) -> tuple[Array, Array]:
    """(q, scale of each row): integers from -127 to 127, in float32 steps as the runtime rounds."""
    weight = np.asarray(weight, np.float32)
    scale = np.abs(weight).max(-1) / np.float32(127)
    return np.rint(weight / np.where(scale > 0, scale, 1)[:, None]), scale


def int8_linear(
    x: Any, weight: Any, bias: Any = None, activation: str = "none", levels: int = 255
) -> Array:
    """Rows of x as low + step * q with whole q from 0 to `levels`; sums of integers."""
    q, scale = quantize_weight(weight)
    low = _f64(x).min(-1, keepdims=True)
    step = (_f64(x).max(-1, keepdims=True) - low) / levels
    rows = np.rint((_f64(x) - low) / np.where(step > 0, step, 1))
    product = (rows @ _f64(q).T * step + low * q.sum(-1)) * scale
    return ACTIVATIONS[activation](product if bias is None else product + _f64(bias))


def layer_norm(x: Any, gamma: Any, beta: Any = None, eps: float = 1e-12) -> Array:
    centred = _f64(x) - _f64(x).mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * _f64(gamma)
    return scaled if beta is None else scaled + _f64(beta)


def rms_norm(x: Any, gamma: Any, eps: float = 1e-6) -> Array:
    return _f64(x) / np.sqrt((_f64(x) ** 2).mean(-1, keepdims=True) + eps) * _f64(gamma)


def log_softmax(x: Any) -> Array:
    return _f64(x) - np.logaddexp.reduce(_f64(x), -1, keepdims=True)


def t5_bucket(
    distance: Array, num_buckets: int, max_distance: int, bidirectional: bool = True
) -> npt.NDArray[np.int64]:
    """Buckets of key minus query position (Raffel et al. 2020, and their code): half of them for
    keys to the right, or none, and those are at distance 0; exact at first, then logarithmic."""
    side = num_buckets // 2 if bidirectional else num_buckets
    exact = side // 2
    length = np.abs(distance) if bidirectional else np.maximum(-distance, 0)
    far = np.maximum(length, 1) / exact
    # The small term keeps distances that sit exactly on a boundary on its upper side.
    log = exact + np.floor(
        np.log(far) / math.log(max_distance / exact) * (side - exact) + 1e-6
    ).astype(np.int64)
    bucket = np.where(length < exact, length, np.minimum(log, side - 1))
    return bucket + side * (bidirectional & (distance > 0))


def relative_slot(distance: Array, buckets: int, max_distance: int) -> npt.NDArray[np.int64]:
    """Row of DeBERTa's table for query minus key position (He et al. 2021, and their code): exact
    to half of the buckets, then logarithmic; without buckets one row for each distance."""
    span = buckets or max_distance
    bucket = np.abs(distance)
    if buckets:
        middle = buckets // 2
        far = np.log(np.maximum(bucket, middle) / middle) / math.log((max_distance - 1) / middle)
        # The small term keeps distances that sit exactly on a boundary on its lower side.
        log = middle + np.ceil(far * (middle - 1) - 1e-6).astype(np.int64)
        bucket = np.where(bucket <= middle, bucket, log)
    return np.clip(span + np.sign(distance) * bucket, 0, 2 * span - 1)


def attention(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    num_heads: int,
    num_kv_heads: int,
    scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    alibi_slopes: Any = None,
    bucket_table: Any = None,
    max_distance: int = 128,
    bidirectional: bool = True,
    buckets: int = 0,
    position_keys: Any = None,
    position_queries: Any = None,
    soft_cap: float = 0,
    distance_bias: Any = None,
) -> Array:
    """One sequence and head at a time; a query that sees no key gives zeros.

    position_keys, position_queries [slots, H d]: disentangled attention, with relative_slot of
    `buckets` and `max_distance`.
    """
    rows, columns = q.shape
    head_dim = columns // num_heads
    q, k, v = (_f64(x).reshape(len(x), x.shape[1] // head_dim, head_dim) for x in (q, k, v))
    out = np.zeros((rows, num_heads, head_dim))
    for b in range(len(cu_seqlens_q) - 1):
        queries = slice(cu_seqlens_q[b], cu_seqlens_q[b + 1])
        keys = slice(cu_seqlens_k[b], cu_seqlens_k[b + 1])
        q_len, kv_len = queries.stop - queries.start, keys.stop - keys.start
        distance = np.arange(kv_len)[None, :] - (kv_len - q_len + np.arange(q_len))[:, None]
        visible = (distance <= 0) if causal else np.full(distance.shape, True)
        if window[0] >= 0:
            visible &= distance >= -window[0]
        if window[1] >= 0:
            visible &= distance <= window[1]
        for h in range(num_heads):
            g = h // (num_heads // num_kv_heads)
            scores = q[queries, h] @ k[keys, g].T
            head = slice(h * head_dim, (h + 1) * head_dim)
            slot = relative_slot(-distance, buckets, max_distance)
            if position_keys is not None:
                by_slot = q[queries, h] @ _f64(position_keys)[:, head].T
                scores += np.take_along_axis(by_slot, slot, axis=1)
            if position_queries is not None:
                by_slot = k[keys, g] @ _f64(position_queries)[:, head].T
                scores += np.take_along_axis(by_slot, slot.T, axis=1).T
            scores *= head_dim**-0.5 if scale is None else scale
            if soft_cap:
                scores = soft_cap * np.tanh(scores / soft_cap)
            if alibi_slopes is not None:
                scores -= alibi_slopes[h] * np.abs(distance)
            if distance_bias is not None:
                far = np.shape(distance_bias)[1] - 1
                scores += _f64(distance_bias)[h][np.clip(-distance, 0, far)]
            if bucket_table is not None:
                rows_of = t5_bucket(distance, len(bucket_table), max_distance, bidirectional)
                scores += _f64(bucket_table)[rows_of, h]
            scores = np.where(visible, scores, -np.inf)
            largest = scores.max(-1, keepdims=True, initial=-1e300)
            weights = np.exp(scores - largest)
            total = weights.sum(-1, keepdims=True)
            out[queries, h] = weights / np.where(total == 0, 1, total) @ v[keys, g]
    return out.reshape(rows, columns)


def positions(cu_seqlens: Any) -> npt.NDArray[np.int64]:
    """0, 1, ... from each sequence's own start."""
    lengths = np.diff(cu_seqlens)
    return np.arange(cu_seqlens[-1]) - np.repeat(cu_seqlens[:-1], lengths)


def embed(
    ids: Any,
    cu_seqlens: Any,
    word: Any,
    position: Any = None,
    type: Any = None,
    type_ids: Any = None,
    position_ids: Any = None,
    position_offset: int = 0,
) -> Array:
    total = _f64(word)[ids]
    if position is not None:
        at = positions(cu_seqlens) if position_ids is None else position_ids
        total = total + _f64(position)[at + position_offset]
    if type is not None:
        total = total + _f64(type)[np.zeros(len(ids), int) if type_ids is None else type_ids]
    return total


def pool(x: Any, cu_seqlens: Any, pooling: str = "mean", normalize: bool = False) -> Array:
    choices: dict[str, Callable[[Array], Array]] = {
        "cls": lambda rows: rows[0],
        "last": lambda rows: rows[-1],
        "max": lambda rows: rows.max(0),
        "mean": lambda rows: rows.mean(0),
        "mean_sqrt": lambda rows: rows.sum(0) / math.sqrt(len(rows)),
        "weighted_mean": lambda rows: np.average(rows, 0, 1.0 + np.arange(len(rows))),
    }
    out = np.zeros((len(cu_seqlens) - 1, x.shape[1]))
    for b, (begin, end) in enumerate(itertools.pairwise(cu_seqlens)):
        if end > begin:
            out[b] = choices[pooling](_f64(x)[begin:end])
    if normalize:
        out /= np.maximum(np.linalg.norm(out, axis=1, keepdims=True), 1e-12)
    return out


def rope_frequencies(theta: float, dims: int, factor: float = 1) -> npt.NDArray[np.float32]:
    """float32, as models are trained."""
    exponents = np.arange(0, dims, 2, dtype=np.float32) / np.float32(dims)
    powers = np.float64(np.float32(theta)) ** exponents.astype(np.float64)
    return np.float32(1) / powers.astype(np.float32) / np.float32(factor)


def rotate(x: Any, at: Any, frequencies: Any) -> Array:
    """x [T, H, d] with columns j and j + dims / 2 rotated by at * frequency j."""
    angles = _f64(np.asarray(at, np.float32)[:, None, None] * frequencies)
    half = len(frequencies)
    out = _f64(x).copy()
    a, b = out[..., :half].copy(), out[..., half : 2 * half].copy()
    out[..., :half] = a * np.cos(angles) - b * np.sin(angles)
    out[..., half : 2 * half] = b * np.cos(angles) + a * np.sin(angles)
    return out


def alibi_slopes(heads: int) -> list[float]:
    """Press et al. 2021: a geometric sequence; odd counts take every second of the next one."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (h + 1) / power) for h in range(power)]
    return slopes + (alibi_slopes(2 * power)[0::2][: heads - power] if heads > power else [])
