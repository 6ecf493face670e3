"""Rotated heads and gated feed-forward blocks: the operators, and models of real sizes."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from cases import offsets
from gpu_support import (
    DEVICE,
    Precision,
    layer_norm,
    linear,
    norm_of,
    rms_norm,
    rotated,
    to_host,
    vector,
)
from packhorse import Session, ops
from reference import positions, rope_frequencies
from torch import Generator, Tensor

LENGTHS = [17, 0, 1, 128, 2, 100, 65, 0, 31, 500, 64, 129]
HEADS = [  # in_features, heads, key/value heads, head_dim, rotated columns
    (8, 1, 1, 8, 2),
    (40, 3, 1, 24, 24),
    (64, 4, 2, 40, 14),
    (312, 12, 12, 32, 32),
    (768, 12, 12, 64, 64),
    (1024, 16, 8, 128, 128),
    (96, 2, 1, 256, 256),
]


class Projection:
    """Arguments of qkv_rope, rounded to what the device sees, and the expected result."""

    def __init__(
        self, precision: Precision, random: Generator, lengths: list[int], heads: Any, norms: bool
    ) -> None:
        k, self.num_heads, self.kv_heads, self.head_dim, self.dims = heads
        self.precision = precision
        self.cu_seqlens = offsets(lengths)
        rows = (self.num_heads + 2 * self.kv_heads) * self.head_dim
        self.x = precision.normal(random, int(self.cu_seqlens[-1]), k)
        self.weight = precision.normal(random, rows, k, scale=k**-0.5)
        self.bias = vector(random, rows)
        self.frequencies = rope_frequencies(10000.0, self.dims)
        self.norms = [vector(random, self.head_dim, 1, 0.2) for _ in range(2)] if norms else None

    def options(self, **more: Any) -> dict[str, Any]:
        options = {"num_heads": self.num_heads, "num_kv_heads": self.kv_heads, **more}
        if self.norms is not None:
            names = zip(("query_norm", "key_norm"), self.norms, strict=True)
            options |= {name: (to_host(gamma), 1e-6) for name, gamma in names}
        return options | {"frequencies": self.frequencies, **self.precision.options()}

    def run(self, rows: slice = slice(None), **more: Any) -> Any:
        options = self.options(**more)
        cu_seqlens = options.pop("cu_seqlens", self.cu_seqlens)
        host = to_host(self.x[rows]), to_host(self.weight), to_host(self.bias)
        return ops.qkv_rope(*host, cu_seqlens, **options)

    def expected(self, at: Any) -> Tensor:
        heads = linear(self.x, self.weight, self.bias).unflatten(1, (-1, self.head_dim))
        q, k, v = heads.split([self.num_heads, self.kv_heads, self.kv_heads], 1)
        if self.norms is not None:
            q, k = rms_norm(q, self.norms[0]), rms_norm(k, self.norms[1])
        q, k = (rotated(x, at, self.frequencies) for x in (q, k))
        return torch.cat([q, k, v], 1).flatten(1)


@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("heads", HEADS)
def test_qkv_rope(
    kernels: str, precision: Precision, random: Generator, heads: Any, norms: bool
) -> None:
    for lengths in (LENGTHS, [1], [0, 0], []):
        case = Projection(precision, random, lengths, heads, norms)
        expected = case.expected(positions(case.cu_seqlens))
        # The portable kernels and the norms round between projection and rotation.
        steps = 4 if kernels == "sm90" else 6
        precision.check(case.run(), expected, steps)
        far = np.random.default_rng(0).integers(0, 130_000, len(case.x)).astype(np.int32)
        precision.check(case.run(position_ids=far), case.expected(far), steps)


@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("heads", HEADS)
def test_projected_rows_do_not_depend_on_one_another(
    kernels: str, precision: Precision, random: Generator, heads: Any, norms: bool
) -> None:
    """The bits are the same from 1 to 4000 rows, with other tiles and neighbours in a tile."""
    lengths = [1, 63, 700, 0, 1236, 2000]
    case = Projection(precision, random, lengths, heads, norms)
    whole = case.run()
    for b, length in enumerate(lengths):
        rows = slice(case.cu_seqlens[b], case.cu_seqlens[b + 1])
        alone = case.run(rows, cu_seqlens=[0, length])
        assert alone.tobytes() == whole[rows].tobytes(), length


def test_heads_that_do_not_suit(precision: Precision) -> None:
    ones, options = np.ones((3, 16)), {"num_heads": 1, **precision.options()}
    for head_dim in (12, 4, 1):
        weight = np.ones((3 * head_dim, 16))
        with pytest.raises(ValueError, match="head_dim .* is not a positive multiple of 8"):
            ops.qkv_rope(ones, weight, None, [0, 3], **options)
    with pytest.raises(ValueError, match="multiples of 8"):
        ops.qkv_rope(np.ones((3, 12)), np.ones((24, 12)), None, [0, 3], **options)
    with pytest.raises(ValueError, match="dims is 10, expected an even number up to 8"):
        ops.qkv_rope(
            ones, np.ones((24, 16)), None, [0, 3], frequencies=np.ones(5, np.float32), **options
        )
    with pytest.raises(ValueError, match="head_dim 264 is over 256"):
        ops.qkv_rope(
            ones, np.ones((792, 16)), None, [0, 3], query_norm=(np.ones(264), 1e-6), **options
        )


class GatedBlock:
    """The weights of a gated feed-forward block, and its result in float64."""

    def __init__(self, precision: Precision, random: Generator, hidden: int, inner: int) -> None:
        self.gate, self.up = (
            (precision.normal(random, inner, hidden, scale=hidden**-0.5), vector(random, inner))
            for _ in range(2)
        )
        self.down = (
            precision.normal(random, hidden, inner, scale=inner**-0.5),
            vector(random, hidden),
        )
        self.norm = norm_of(random, hidden)
        self.precision = precision

    def run(self, x: Tensor, activation: str, **options: Any) -> Any:
        up, down, gate = (
            (to_host(weight), to_host(bias)) for weight, bias in (self.up, self.down, self.gate)
        )
        options |= self.precision.options()
        return ops.feed_forward(to_host(x), up, down, gate=gate, activation=activation, **options)

    def expected(self, x: Tensor, activation: str) -> Tensor:
        return linear(linear(x, *self.gate, activation) * linear(x, *self.up), *self.down)


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu", "silu", "tanh"])
def test_gated_feed_forward(
    kernels: str, precision: Precision, random: Generator, activation: str
) -> None:
    steps = 3 if kernels == "sm90" else 8  # gate and up are rounded first
    sizes = [(0, 8, 8), (1, 32, 75), (67, 40, 136), (300, 312, 1200), (1500, 768, 1152)]
    for rows, hidden, inner in sizes:
        block = GatedBlock(precision, random, hidden, inner)
        x = precision.normal(random, rows, hidden)
        expected = block.expected(x, activation)
        precision.check(block.run(x, activation), expected, steps)
        gamma, beta, eps = block.norm
        norm = (to_host(gamma), to_host(beta), eps)
        actual = block.run(x, activation, residual=to_host(x), norm=norm)
        precision.check(actual, layer_norm(x + expected, *block.norm), steps + 2)


def test_gates_without_biases(kernels: str, precision: Precision, random: Generator) -> None:
    x = precision.normal(random, 70, 64)
    gate, up = (precision.normal(random, 50, 64, scale=0.2) for _ in range(2))
    down = precision.normal(random, 24, 50, scale=0.2)
    layers = {"up": (to_host(up), None), "down": (to_host(down), None)}
    gate_layer = (to_host(gate), None)
    actual = ops.feed_forward(to_host(x), **layers, gate=gate_layer, **precision.options())
    expected = linear(linear(x, gate, None, "gelu") * linear(x, up), down)
    precision.check(actual, expected, steps=3 if kernels == "sm90" else 8)


@pytest.mark.parametrize(("hidden", "inner"), [(24, 40), (312, 600), (768, 1152), (1024, 3072)])
def test_gated_rows_do_not_depend_on_one_another(
    kernels: str, precision: Precision, random: Generator, hidden: int, inner: int
) -> None:
    block = GatedBlock(precision, random, hidden, inner)
    x = precision.normal(random, 5000, hidden)
    whole = block.run(x, "gelu")
    for begin, end in [(0, 1), (4999, 5000), (1, 65), (63, 190), (100, 700), (1234, 4321)]:
        part = block.run(x[begin:end], "gelu")
        assert part.tobytes() == whole[begin:end].tobytes(), (begin, end)


def test_gates_that_do_not_suit(precision: Precision, random: Generator) -> None:
    block = GatedBlock(precision, random, 12, 16)
    with pytest.raises(ValueError, match="multiples of 8"):
        block.run(precision.normal(random, 3, 12), "gelu")


# --- models of real sizes, with fewer layers and random weights

Make = Callable[[], Any]
MODELS: dict[str, Make] = {
    "ModernBERT-base": lambda: transformers.ModernBertModel(
        transformers.ModernBertConfig(
            vocab_size=2000,
            num_hidden_layers=7,
            initializer_range=0.05,
            **dict.fromkeys(
                ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0
            ),
        )
    ),
    "Nomic": lambda: transformers.NomicBertModel(
        transformers.NomicBertConfig(
            vocab_size=2000, num_hidden_layers=6, initializer_range=0.05, pad_token_id=0
        )
    ),
    "Qwen3-Embedding-0.6B": lambda: transformers.Qwen3Model(
        transformers.Qwen3Config(
            vocab_size=2000,
            hidden_size=1024,
            num_hidden_layers=6,
            num_attention_heads=16,
            num_key_value_heads=8,
            head_dim=128,
            intermediate_size=3072,
            initializer_range=0.05,
        )
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_transformers(kernels: str, precision: Precision, name: str, tmp_path: Path) -> None:
    """The error is no larger than twice that of PyTorch in the same dtype."""
    if name == "Nomic" and not hasattr(transformers, "NomicBertModel"):
        pytest.skip("this transformers has no NomicBERT")
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    model.save_pretrained(tmp_path)
    cu_seqlens = offsets([n for n in LENGTHS if n] + [700])
    ids = np.random.default_rng(0).integers(1, 2000, cu_seqlens[-1]).astype(np.int32)
    lengths = np.diff(cu_seqlens)
    mask = np.arange(lengths.max()) < lengths[:, None]
    padded = np.zeros(mask.shape, np.int64)
    padded[mask] = ids
    inputs = {"input_ids": padded, "attention_mask": mask.astype(np.int64)}
    if "token_type_ids" in inspect.signature(model.forward).parameters:
        inputs["token_type_ids"] = np.zeros_like(padded)

    def run(dtype: torch.dtype) -> Any:
        there = copy.deepcopy(model).cuda().to(dtype)
        with torch.inference_mode():
            found = there(**{k: torch.from_numpy(v).cuda() for k, v in inputs.items()})
        return found.last_hidden_state.float().cpu().numpy()[mask]

    session = Session.load(tmp_path, DEVICE, precision.name, max_tokens=2048, max_sequences=16)
    exact = run(torch.float32)
    ours = np.abs(session.run((ids, cu_seqlens)).hidden - exact)
    theirs = np.abs(run(precision.dtype) - exact)
    assert ours.mean() <= 2 * theirs.mean(), f"{ours.mean():.1e}, {theirs.mean():.1e}"
    assert ours.max() <= 2 * theirs.max(), f"{ours.max():.1e}, {theirs.max():.1e}"
