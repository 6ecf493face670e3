"""A step of generation by PyTorch, as strong as we can make it: fused projections, keys and values
in place, layers compiled, and all of it in one CUDA graph.

In a step of single tokens every sequence has the same number of cached keys, and nothing is masked:
attention is scaled_dot_product_attention over exactly the keys that there are, which PyTorch splits
along them. In a step of prompts these are packed, and attention is FlashAttention's for variable
lengths.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

sys.path.append(str(Path(__file__).resolve().parents[1] / "gpu"))
from kernel_timing import intervals_ms


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder. llama: RMS norms, rotation and a gated feed-forward block; else as
    GPT-2."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    llama: bool = False


class Block(nn.Module):
    def __init__(self, shape: Shape, batch: int, context: int) -> None:
        super().__init__()
        self.shape = shape
        bias = not shape.llama
        norm = nn.RMSNorm if shape.llama else nn.LayerNorm
        width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        self.attention_norm = norm(shape.hidden)
        self.qkv = nn.Linear(shape.hidden, width, bias=bias)
        self.output = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=bias)
        self.ffn_norm = norm(shape.hidden)
        up = shape.intermediate * (2 if shape.llama else 1)
        self.up = nn.Linear(shape.hidden, up, bias=bias)
        self.down = nn.Linear(shape.intermediate, shape.hidden, bias=bias)
        size = (batch, shape.kv_heads, context, shape.head_dim)
        self.register_buffer("keys", torch.randn(size))
        self.register_buffer("values", torch.randn(size))

    def forward(self, x: Tensor, position: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Single tokens: x [batch, hidden], position [1]."""
        q, k, v = self._project(x, cos, sin)
        self.keys.index_copy_(2, position, k[:, :, None])
        self.values.index_copy_(2, position, v[:, :, None])
        context = functional.scaled_dot_product_attention(
            q[:, :, None],
            self.keys,
            self.values,
            enable_gqa=self.shape.heads != self.shape.kv_heads,
        )
        return self._finish(x, context)

    def prefill(
        self, x: Tensor, cos: Tensor, sin: Tensor, cu_seqlens: Tensor, longest: int
    ) -> Tensor:
        """Prompts: x [tokens, hidden]. Keys and values are kept where the prompts' lie."""
        q, k, v = self._project(x, cos, sin)
        self.keys.view(-1)[: k.numel()].view(k.shape).copy_(k)
        self.values.view(-1)[: v.numel()].view(v.shape).copy_(v)
        context = torch.ops.aten._flash_attention_forward(
            q, k, v, cu_seqlens, cu_seqlens, longest, longest, 0.0, True, False
        )[0]
        return self._finish(x, context)

    def _project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shape = self.shape
        qkv = self.qkv(self.attention_norm(x)).view(len(x), -1, shape.head_dim)
        q, k, v = qkv.split((shape.heads, shape.kv_heads, shape.kv_heads), dim=1)
        if shape.llama:
            q, k = (self._rotate(part, cos, sin) for part in (q, k))
        return q, k, v

    def _finish(self, x: Tensor, context: Tensor) -> Tensor:
        x = x + self.output(context.reshape(len(x), -1))
        up = self.up(self.ffn_norm(x))
        if self.shape.llama:
            gate, up = up.chunk(2, dim=-1)
            up = functional.silu(gate) * up
        else:
            up = functional.gelu(up, approximate="tanh")
        return x + self.down(up)

    @staticmethod
    def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        left, right = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-right, left), dim=-1) * sin


class Model:
    """Random weights, and a CUDA graph of a step. A subclass captures one with `_capture`."""

    def __init__(self, shape: Shape, batch: int, context: int, dtype: torch.dtype) -> None:
        torch._dynamo.reset()
        self.shape = shape
        with torch.device("cuda"):
            before = torch.get_default_dtype()
            torch.set_default_dtype(dtype)
            self.embedding = nn.Embedding(shape.vocab, shape.hidden)
            self.blocks = [Block(shape, batch, context).eval() for _ in range(shape.layers)]
            self.norm = (nn.RMSNorm if shape.llama else nn.LayerNorm)(shape.hidden)
            torch.set_default_dtype(before)

    def _angles(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        angle = positions[:, None] * torch.arange(self.shape.head_dim // 2, device="cuda") / 1e4
        angle = torch.cat((angle, angle), dim=-1)[:, None]
        return angle.cos().to(dtype), angle.sin().to(dtype)

    def _choose(self, x: Tensor) -> Tensor:
        return functional.linear(self.norm(x), self.embedding.weight).argmax(dim=-1)

    def _capture(self, step: Callable[[], None]) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            step()

    def milliseconds(self, steps: int = 64, rounds: int = 5) -> float:
        """The median time of a step; ids go from step to step on the device."""

        def replay() -> None:
            for _ in range(steps):
                self.graph.replay()

        return statistics.median(intervals_ms([replay] * (rounds + 1))[1:]) / steps


class Step(Model):
    """The step of `batch` sequences that have `context` keys each, the new one's included."""

    @torch.inference_mode()
    def __init__(
        self, shape: Shape, batch: int, context: int, dtype: torch.dtype, *, compiled: bool = True
    ) -> None:
        super().__init__(shape, batch, context, dtype)
        position = torch.tensor([context - 1], device="cuda")
        cos, sin = self._angles(position, dtype)
        self.ids = torch.zeros(batch, dtype=torch.long, device="cuda")
        choose = self._choose
        if compiled:
            for module in self.blocks:
                module.compile(dynamic=False)
            choose = torch.compile(choose, dynamic=False)

        def step() -> None:
            x = self.embedding(self.ids)
            for module in self.blocks:
                x = module(x, position, cos, sin)
            self.ids.copy_(choose(x))

        self._capture(step)


class Prefill(Model):
    """The step of `batch` prompts of `length` tokens, which gives their next tokens.

    Prompts are random: tokens that are all equal make rows that are all equal, whose products
    switch so few bits that a GPU at its power limit runs them at a higher clock (an H100 at 1980
    MHz instead of 1710, 13 % less time), which no real prompt sees.
    """

    @torch.inference_mode()
    def __init__(self, shape: Shape, batch: int, length: int, dtype: torch.dtype) -> None:
        super().__init__(shape, batch, length, dtype)
        cos, sin = self._angles(torch.arange(length, device="cuda").repeat(batch), dtype)
        cu_seqlens = torch.arange(batch + 1, device="cuda", dtype=torch.int32) * length
        last = cu_seqlens[1:].long() - 1
        ids = torch.randint(shape.vocab, (batch * length,), device="cuda")
        self.chosen = torch.zeros(batch, dtype=torch.long, device="cuda")
        torch._dynamo.config.recompile_limit = shape.layers + 1
        layers = [torch.compile(module.prefill, dynamic=False) for module in self.blocks]
        choose = torch.compile(self._choose, dynamic=False)

        def step() -> None:
            x = self.embedding(ids)
            for layer in layers:
                x = layer(x, cos, sin, cu_seqlens, length)
            self.chosen.copy_(choose(x[last]))

        self._capture(step)
