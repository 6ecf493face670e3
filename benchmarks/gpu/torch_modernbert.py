"""ModernBERT's encoder in PyTorch on packed rows: the peer of families.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch_encoders import Batch, Layer, compile_once

# (q, k, v [T, H, d], batch, window: keys seen on either side, or None) -> [T, H, d]
Attention = Callable[[Tensor, Tensor, Tensor, Tensor, int, int | None], Tensor]

PACKED_ATTENTION = "torch.ops.aten._flash_attention_forward (varlen, with its window)"


class ModernBert:
    """The weights in the form that PyTorch needs, and the ways to run them, which return hidden
    states [T, hidden_size]."""

    def __init__(
        self, weights: Mapping[str, Tensor], spec: Mapping[str, Any], dtype: torch.dtype
    ) -> None:
        attention = spec["attention"]
        self.num_heads, self.eps = spec["num_heads"], spec["norm"]["eps"]
        self.window = attention["local"]["window"]
        self.local = set(attention["local"]["layers"])
        dims = spec["hidden_size"] // spec["num_heads"]
        exponents = torch.arange(0, dims, 2, device="cuda").float() / dims
        rope = attention["rope"]
        self.frequencies = [
            1.0 / theta**exponents for theta in (rope["theta"], rope["local_theta"])
        ]

        def weight(name: str) -> Tensor:
            return weights[f"{name}.weight"].to(dtype)

        self.table = weights["embeddings.word"].to(dtype)
        self.norms = [weight("embeddings.norm"), weight("final_norm")]
        self.layers: list[Layer] = []
        for i in range(spec["num_layers"]):
            attend, ffn = f"layers.{i}.attention", f"layers.{i}.ffn"
            layer = [
                torch.cat([weight(f"{attend}.{name}") for name in ("query", "key", "value")]),
                weight(f"{attend}.output"),
                torch.cat([weight(f"{ffn}.{name}") for name in ("gate", "up")]),
                weight(f"{ffn}.down"),
                weight(f"{ffn}.norm"),
            ]
            if i > 0:
                layer.append(weight(f"{attend}.norm"))
            self.layers.append(tuple(layer))

    def packed(self, batch: Batch, compiled: bool = False) -> Tensor:
        return self._run(batch, flash, compiled)

    def exact(self, batch: Batch) -> Tensor:
        """Computes one sequence after the other, in any dtype."""
        return self._run(batch, one_by_one, False)

    def _run(self, batch: Batch, attention: Attention, compiled: bool) -> Tensor:
        make = compile_once if compiled else lambda function: function
        embed, layer, angles = make(_embed), make(_layer), make(_angles)
        x = embed(batch.ids, self.table, self.norms[0], self.eps)
        turns = [angles(batch.positions, frequencies) for frequencies in self.frequencies]
        for i, weights in enumerate(self.layers):
            local = i in self.local
            window = self.window if local else None
            x = layer(
                x, turns[local], batch.cu_seqlens, batch.longest, self.num_heads, window,
                self.eps, weights, attention,
            )  # fmt: skip
        return _norm(x, self.norms[1], self.eps)


def flash(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, longest: int, window: int | None
) -> Tensor:
    bounds = (cu_seqlens, cu_seqlens, longest, longest)
    limits = {} if window is None else {"window_size_left": window, "window_size_right": window}
    found: Tensor = torch.ops.aten._flash_attention_forward(
        q, k, v, *bounds, 0.0, False, False, **limits
    )[0]
    return found


def one_by_one(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, longest: int, window: int | None
) -> Tensor:
    out = torch.empty_like(q)
    for begin, end in pairwise(cu_seqlens.tolist()):
        at = torch.arange(end - begin, device="cuda")
        mask = None if window is None else (at - at[:, None]).abs() <= window
        parts = (x[begin:end].transpose(0, 1)[None] for x in (q, k, v))
        found = F.scaled_dot_product_attention(*parts, attn_mask=mask)
        out[begin:end] = found[0].transpose(0, 1)
    return out


def _norm(x: Tensor, gamma: Tensor, eps: float) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), gamma, None, eps)


def _embed(ids: Tensor, table: Tensor, gamma: Tensor, eps: float) -> Tensor:
    return _norm(F.embedding(ids, table), gamma, eps)


def _angles(positions: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    angles = (positions.float()[:, None] * frequencies)[:, None]
    return angles.cos(), angles.sin()


def _rotate(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = angles
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def _layer(
    x: Tensor,
    angles: tuple[Tensor, Tensor],
    cu_seqlens: Tensor,
    longest: int,
    num_heads: int,
    window: int | None,
    eps: float,
    weights: Layer,
    attention: Attention,
) -> Tensor:
    qkv, output, gate_up, down, ffn_norm, *attention_norm = weights
    y = _norm(x, attention_norm[0], eps) if attention_norm else x
    q, k, v = F.linear(y, qkv).view(len(x), 3, num_heads, -1).unbind(1)
    q, k = _rotate(q, angles), _rotate(k, angles)
    context = attention(q, k, v, cu_seqlens, longest, window)
    x = x + F.linear(context.flatten(1), output)
    gate, up = F.linear(_norm(x, ffn_norm, eps), gate_up).chunk(2, -1)
    return x + F.linear(F.gelu(gate) * up, down)
