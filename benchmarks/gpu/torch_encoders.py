"""BERT's encoder in PyTorch, as fast as it can be and as in the paper's baseline: the peers on the
GPU.

All take the weights and batches of batches.py on the GPU and leave hidden states there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

EPS = 1e-12

try:
    from torch.nn.attention.varlen import varlen_attn

    VARLEN = "torch.nn.attention.varlen.varlen_attn"
except ImportError:
    VARLEN = "torch.ops.aten._flash_attention_forward"

    def varlen_attn(q: Tensor, k: Tensor, v: Tensor, *bounds: Any) -> Tensor:
        """PyTorch's variable-length attention. `bounds` are cu_seqlens of queries and of keys, and
        the longest of queries and of keys."""
        out: Tensor = torch.ops.aten._flash_attention_forward(q, k, v, *bounds, 0.0, False, False)[
            0
        ]
        return out


@dataclass(frozen=True)
class Batch:
    """One batch on the GPU, packed and padded."""

    ids: Tensor  # int64[T]
    positions: Tensor  # int64[T]
    cu_seqlens: Tensor  # int32[B+1]
    longest: int
    padded_ids: Tensor  # int64[B, longest], zeros for padding
    mask: Tensor  # bool[B, longest], true for tokens

    @classmethod
    def make(cls, ids: Any, cu_seqlens: Any) -> Batch:
        rows = [torch.from_numpy(ids[a:b]).long() for a, b in pairwise(cu_seqlens)]
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        lengths = torch.tensor([len(row) for row in rows])
        return cls(
            torch.cat(rows).cuda(),
            torch.cat([torch.arange(len(row)) for row in rows]).cuda(),
            torch.from_numpy(cu_seqlens).cuda(),
            padded.shape[1],
            padded.cuda(),
            (torch.arange(padded.shape[1]) < lengths[:, None]).cuda(),
        )


Layer = tuple[Tensor, ...]  # weight and bias of qkv, output, norm, up, down, norm


class Encoder:
    """The weights in the form that PyTorch needs, and the ways to run them."""

    def __init__(
        self, weights: Mapping[str, Tensor], num_layers: int, num_heads: int, dtype: torch.dtype
    ) -> None:
        self.num_heads = num_heads
        self.tables: Layer = tuple(
            weights[f"embeddings.{name}"].to(dtype)
            for name in ("word", "position", "type", "norm.weight", "norm.bias")
        )
        self.layers: list[Layer] = []
        for i in range(num_layers):
            layer: list[Tensor] = []
            for kind in ("weight", "bias"):
                parts = [
                    f"layers.{i}.attention.{name}.{kind}" for name in ("query", "key", "value")
                ]
                layer.append(torch.cat([weights[part] for part in parts]))
            names = ("attention.output", "attention.norm", "ffn.up", "ffn.down", "ffn.norm")
            layer += [weights[f"layers.{i}.{n}.{k}"] for n in names for k in ("weight", "bias")]
            self.layers.append(tuple(tensor.to(dtype) for tensor in layer))

    def packed(self, batch: Batch, compiled: bool = False) -> Tensor:
        """Returns [T, hidden_size], computed without padding."""
        embed = compile_once(_embed) if compiled else _embed
        layer = compile_once(_packed_layer) if compiled else _packed_layer
        x = embed(batch.ids, batch.positions, self.tables)
        for weights in self.layers:
            x = layer(x, batch.cu_seqlens, batch.longest, self.num_heads, weights)
        return x

    def padded(self, batch: Batch) -> Tensor:
        """Returns [B, longest, hidden_size], by scaled_dot_product_attention with a mask of the
        padding."""
        x = _embed(batch.padded_ids, torch.arange(batch.longest, device="cuda"), self.tables)
        mask = batch.mask[:, None, None, :]
        for weights in self.layers:
            qkv = F.linear(x, weights[0], weights[1])
            q, k, v = (_split_heads(part, self.num_heads) for part in qkv.chunk(3, -1))
            context = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            x = _finish_layer(x, context.transpose(1, 2).flatten(2), weights)
        return x

    def naive(self, batch: Batch) -> Tensor:
        """Returns [B, longest, hidden_size] as the paper's PyTorch baseline does: three products, a
        softmax over a whole score matrix, and padding masked by a large negative number."""
        x = _embed(batch.padded_ids, torch.arange(batch.longest, device="cuda"), self.tables)
        penalty = (~batch.mask[:, None, None, :]).to(x.dtype) * -10000.0
        for weights in self.layers:
            parts = zip(weights[0].chunk(3), weights[1].chunk(3), strict=True)
            q, k, v = (_split_heads(F.linear(x, w, b), self.num_heads) for w, b in parts)
            scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
            context = torch.softmax(scores + penalty, dim=-1) @ v
            x = _finish_layer(x, context.transpose(1, 2).flatten(2), weights)
        return x


def _embed(ids: Tensor, positions: Tensor, tables: Layer) -> Tensor:
    word, position, type, gamma, beta = tables
    total = F.embedding(ids, word) + F.embedding(positions, position) + type[0]
    return F.layer_norm(total, (word.shape[1],), gamma, beta, EPS)


def _split_heads(x: Tensor, num_heads: int) -> Tensor:
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def _finish_layer(x: Tensor, context: Tensor, weights: Layer) -> Tensor:
    """Computes everything after attention."""
    out, out_bias, gamma, beta, up, up_bias, down, down_bias, gamma2, beta2 = weights[2:]
    shape = (x.shape[-1],)
    x = F.layer_norm(x + F.linear(context, out, out_bias), shape, gamma, beta, EPS)
    inner = F.gelu(F.linear(x, up, up_bias))
    return F.layer_norm(x + F.linear(inner, down, down_bias), shape, gamma2, beta2, EPS)


def _packed_layer(
    x: Tensor, cu_seqlens: Tensor, longest: int, num_heads: int, weights: Layer
) -> Tensor:
    qkv = F.linear(x, weights[0], weights[1]).view(len(x), 3, num_heads, -1)
    q, k, v = qkv.unbind(1)
    context = varlen_attn(q, k, v, cu_seqlens, cu_seqlens, longest, longest)
    return _finish_layer(x, context.flatten(1), weights)


Compilable = TypeVar("Compilable", bound=Callable[..., Tensor])
_compiled: dict[Any, Any] = {}


def compile_once(function: Compilable) -> Compilable:
    """Compiles one layer for all, because nothing could be fused across the products at its
    ends."""
    if function not in _compiled:
        _compiled[function] = torch.compile(function, dynamic=False)
    compiled: Compilable = _compiled[function]
    return compiled


def forget_compiled() -> None:
    """Called before other shapes, so that PyTorch's limit on the versions of one function is not
    reached."""
    _compiled.clear()
    torch.compiler.reset()


def capture(work: Callable[[], Tensor]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """Captures `work` in a CUDA graph. Returns the graph and the tensor that every replay
    writes."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = work()
    return graph, output
