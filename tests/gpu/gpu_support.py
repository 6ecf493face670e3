"""Common parts of the tests in this folder: precisions, and operators in float64 on the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from packhorse._native.ops import Operators
from packhorse.ops import call as operator_call
from reference import relative_slot, t5_bucket
from torch import Tensor

DEVICE = "cuda:0"
Array = npt.NDArray[np.float32]


@overload
def to_host(x: None) -> None: ...
@overload
def to_host(x: Tensor) -> Array: ...
def to_host(x: Tensor | None) -> Array | None:
    return None if x is None else x.float().cpu().numpy()


@dataclass(frozen=True)
class Precision:
    """A dtype of the device; `epsilon` is the largest relative error of one rounding."""

    name: str
    epsilon: float

    @property
    def dtype(self) -> torch.dtype:
        dtype = getattr(torch, self.name)
        assert isinstance(dtype, torch.dtype)
        return dtype

    def round(self, x: Any) -> Tensor:
        """Returns x as the device sees it, rounded to the dtype, in float64."""
        return torch.as_tensor(x, device="cuda").to(self.dtype).double()

    def normal(self, random: torch.Generator, *shape: int, scale: float = 1) -> Tensor:
        return self.round(torch.randn(shape, generator=random, device="cuda") * scale)

    def check(self, actual: Array, expected: Tensor, steps: float = 1) -> None:
        """Compares values of magnitude around 1. `steps` is about how many roundings follow one
        another at most."""
        assert actual.dtype == np.float32
        tolerance = 2 * steps * self.epsilon
        found = torch.as_tensor(actual, device="cuda").double()
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
        # The error of all elements together is bounded, too, since single errors add up at random.
        distance, size = (found - expected).norm(), expected.norm()
        if expected.isfinite().all():
            assert distance <= tolerance * size, f"{distance / size:.1e} of the norm"

    def options(self) -> dict[str, Any]:
        return {"device": DEVICE, "dtype": self.name}


PRECISIONS = {name: Precision(name, e) for name, e in (("float16", 2**-11), ("bfloat16", 2**-9))}

Norm = tuple[Tensor, Tensor, float]  # gamma, beta, eps


@contextmanager
def using_kernels(name: str) -> Iterator[None]:
    """Sessions that are loaded and operators that are called within use the kernels "sm90" or
    "portable"."""

    def make(
        device: str,
        dtype: str,
        threads: int | None,
        attention: str = "auto",
        skinny: bool = False,
    ) -> Operators:
        return Operators(device, dtype, threads or 0, attention, skinny)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PACKHORSE_GEMM", name)
        # "auto" means the Hopper kernels, and the portable ones for what those do not take.
        patch.setenv("PACKHORSE_ATTENTION", "online" if name == "portable" else "auto")
        # Operators read the choice when they are made: those with other kernels cannot be shared.
        patch.setattr(operator_call, "shared_operators", lru_cache(make))
        yield


def vector(random: torch.Generator, size: int, mean: float = 0, deviation: float = 1) -> Tensor:
    """Returns a random vector of float32 values, which biases and norms have in every dtype."""
    values = torch.randn(size, generator=random, device="cuda") * deviation + mean
    return values.double()


def norm_of(random: torch.Generator, size: int) -> Norm:
    return vector(random, size, 1, 0.2), vector(random, size, 0, 0.2), 1e-5


# --- operators in float64, with the arguments of packhorse.ops

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str = "none"
) -> Tensor:
    return ACTIVATIONS[activation](F.linear(x, weight, bias))


def rotated(heads: Tensor, positions: Any, frequencies: Any) -> Tensor:
    """heads [T, H, d] with columns j and j + dims / 2 turned by position * frequencies[j]."""
    at = torch.as_tensor(positions, device="cuda").float()
    # The product is rounded to float32, as in training.
    angles = (at[:, None] * torch.as_tensor(frequencies, device="cuda")).double()[:, None]
    dims = 2 * angles.shape[-1]
    a, b = heads[..., :dims].chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin, heads[..., dims:]], -1)


def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor | None = None, eps: float = 1e-12) -> Tensor:
    return F.layer_norm(x, (x.shape[1],), gamma, beta, eps)


def rms_norm(x: Tensor, gamma: Tensor, eps: float = 1e-6) -> Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * gamma


def _term(
    distance: Tensor,
    slopes: Tensor | None,
    table: Tensor | None,
    max_distance: int,
    bidirectional: bool,
) -> Tensor | float:
    """Returns what is added to the scores, [H, queries, keys]."""
    if slopes is not None:
        return -slopes[:, None, None] * distance.abs()
    if table is None:
        return 0.0
    far = int(distance.abs().max())
    buckets = torch.from_numpy(
        t5_bucket(np.arange(-far, far + 1), len(table), max_distance, bidirectional)
    )
    return table[buckets.cuda()[distance + far]].permute(2, 0, 1)


def _disentangled(
    qh: Tensor,
    kh: Tensor,
    distance: Tensor,
    position_keys: Tensor | None,
    position_queries: Tensor | None,
    buckets: int,
    max_distance: int,
) -> Tensor | float:
    """Returns DeBERTa's terms of the scores, unscaled, [H, queries, keys]."""
    slot = torch.from_numpy(relative_slot(-distance.cpu().numpy(), buckets, max_distance)).cuda()
    slots = slot.expand(len(qh), -1, -1)
    heads = (len(qh), qh.shape[2])
    total: Tensor | float = 0.0
    if position_keys is not None:
        by_slot = torch.einsum("hid,shd->his", qh, position_keys.unflatten(1, heads))
        total = total + by_slot.gather(2, slots)
    if position_queries is not None:
        by_slot = torch.einsum("hjd,shd->hjs", kh, position_queries.unflatten(1, heads))
        total = total + by_slot.gather(2, slots.mT).mT
    return total


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Sequence[int],
    cu_seqlens_k: Sequence[int],
    num_heads: int,
    num_kv_heads: int,
    scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    alibi_slopes: Tensor | None = None,
    bucket_table: Tensor | None = None,
    max_distance: int = 128,
    bidirectional: bool = True,
    position_keys: Tensor | None = None,
    position_queries: Tensor | None = None,
    buckets: int = 0,
) -> Tensor:
    """Computes one sequence after the other. Query rows are taken in steps that make at most 2^27
    scores, or one by one."""
    head_dim = q.shape[1] // num_heads
    out = torch.zeros_like(q)
    for queries, keys in zip(pairwise(cu_seqlens_q), pairwise(cu_seqlens_k), strict=True):
        q_len, kv_len = queries[1] - queries[0], keys[1] - keys[0]
        if q_len == 0 or kv_len == 0:
            continue
        kh, vh = (
            x[slice(*keys)]
            .view(kv_len, num_kv_heads, head_dim)
            .transpose(0, 1)
            .repeat_interleave(num_heads // num_kv_heads, 0)
            for x in (k, v)
        )
        step = max(1, 2**27 // (num_heads * kv_len))
        for begin in range(0, q_len, step):
            end = min(begin + step, q_len)
            rows = slice(queries[0] + begin, queries[0] + end)
            qh = q[rows].view(end - begin, num_heads, head_dim).transpose(0, 1)
            position = torch.arange(begin, end, device="cuda") + kv_len - q_len
            distance = torch.arange(kv_len, device="cuda") - position[:, None]
            scores = qh @ kh.transpose(1, 2)
            if position_keys is not None or position_queries is not None:
                scores += _disentangled(
                    qh, kh, distance, position_keys, position_queries, buckets, max_distance
                )
            scores *= head_dim**-0.5 if scale is None else scale
            scores += _term(distance, alibi_slopes, bucket_table, max_distance, bidirectional)
            visible = distance <= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
            if window[0] >= 0:
                visible &= distance >= -window[0]
            if window[1] >= 0:
                visible &= distance <= window[1]
            scores.masked_fill_(~visible, -math.inf)
            # Softmax gives NaN for a query that sees no key; it must give zeros.
            weights = scores.softmax(-1).masked_fill_(~visible.any(-1, keepdim=True), 0)
            out[rows] = (weights @ vh).transpose(0, 1).reshape(end - begin, -1)
    return out


def _weighted_mean(rows: Tensor) -> Tensor:
    weights = torch.arange(1, len(rows) + 1, dtype=rows.dtype, device=rows.device)
    return weights @ rows / weights.sum()


def pool(x: Tensor, cu_seqlens: Sequence[int], pooling: str, normalize: bool = False) -> Tensor:
    choices: dict[str, Callable[[Tensor], Tensor]] = {
        "cls": lambda rows: rows[0],
        "last": lambda rows: rows[-1],
        "max": lambda rows: rows.amax(0),
        "mean": lambda rows: rows.mean(0),
        "mean_sqrt": lambda rows: rows.sum(0) / math.sqrt(len(rows)),
        "weighted_mean": _weighted_mean,
    }
    out = x.new_zeros(len(cu_seqlens) - 1, x.shape[1])
    for b, (begin, end) in enumerate(pairwise(cu_seqlens)):
        if end > begin:
            out[b] = choices[pooling](x[begin:end])
    return F.normalize(out, dim=1) if normalize else out
