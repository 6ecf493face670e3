"""A step of generation by PyTorch, as strong as we can make it: fused projections, keys and values
in place, layers compiled, and all of it in one CUDA graph.

Every sequence has the same number of cached keys, and nothing is masked: attention is
scaled_dot_product_attention over exactly the keys that there are, which PyTorch splits along them.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    """llama: RMS norms, rotation and a gated feed-forward block; else as GPT-2."""

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
        shape = self.shape
        batch = x.shape[0]
        qkv = self.qkv(self.attention_norm(x)).view(batch, -1, 1, shape.head_dim)
        q, k, v = qkv.split((shape.heads, shape.kv_heads, shape.kv_heads), dim=1)
        if shape.llama:
            q, k = (self._rotate(part, cos, sin) for part in (q, k))
        self.keys.index_copy_(2, position, k)
        self.values.index_copy_(2, position, v)
        context = functional.scaled_dot_product_attention(
            q, self.keys, self.values, enable_gqa=shape.heads != shape.kv_heads
        )
        x = x + self.output(context.reshape(batch, -1))
        up = self.up(self.ffn_norm(x))
        if shape.llama:
            gate, up = up.chunk(2, dim=-1)
            up = functional.silu(gate) * up
        else:
            up = functional.gelu(up, approximate="tanh")
        return x + self.down(up)

    @staticmethod
    def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        left, right = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-right, left), dim=-1) * sin


class Step:
    """The step of `batch` sequences that have `context` keys each, the new one's included."""

    @torch.inference_mode()
    def __init__(
        self, shape: Shape, batch: int, context: int, dtype: torch.dtype, *, compiled: bool = True
    ) -> None:
        torch._dynamo.reset()
        with torch.device("cuda"):
            before = torch.get_default_dtype()
            torch.set_default_dtype(dtype)
            self.embedding = nn.Embedding(shape.vocab, shape.hidden)
            blocks = [Block(shape, batch, context).eval() for _ in range(shape.layers)]
            self.norm = (nn.RMSNorm if shape.llama else nn.LayerNorm)(shape.hidden)
            torch.set_default_dtype(before)
            self.ids = torch.zeros(batch, dtype=torch.long)
            position = torch.tensor([context - 1])
            angle = torch.arange(shape.head_dim // 2) * (context - 1) / 1e4
            angle = torch.cat((angle, angle))
        cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)

        def block(module: Block, x: Tensor, position: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
            found: Tensor = module(x, position, cos, sin)
            return found

        def head(x: Tensor) -> Tensor:
            return functional.linear(self.norm(x), self.embedding.weight).argmax(dim=-1)

        if compiled:
            for module in blocks:
                module.compile(dynamic=False)
            head = torch.compile(head, dynamic=False)

        def step() -> None:
            x = self.embedding(self.ids)
            for module in blocks:
                x = block(module, x, position, cos, sin)
            self.ids.copy_(head(x))

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            step()
        self.blocks = blocks  # own the memory that the graph uses

    def milliseconds(self, steps: int = 64, rounds: int = 5) -> float:
        """The median time of a step; ids go from step to step on the device."""
        found = []
        for _ in range(rounds + 1):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(steps):
                self.graph.replay()
            end.record()
            end.synchronize()
            found.append(begin.elapsed_time(end) / steps)
        return statistics.median(found[1:])
