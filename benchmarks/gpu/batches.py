"""Models with random weights for the GPU benchmarks, and batches that are defined by their
lengths."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import packhorse
import torch
from packhorse.names import Dtype
from packhorse_weights.layout import weight_shapes
from torch import Tensor

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "python" / "support"))
from models import tiny_spec, with_defaults, write_model

Json = dict[str, Any]


@dataclass(frozen=True)
class Model:
    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    max_tokens: int  # for loading its session; at least that of every workload
    max_sequences: int
    max_length: int = 512  # the checkpoints' limit, which one workload of BERT-base exceeds

    @property
    def spec(self) -> Json:
        return tiny_spec(
            vocab_size=30522,
            hidden_size=self.hidden_size,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            intermediate_size=4 * self.hidden_size,
            positions={"kind": "learned", "count": self.max_length, "offset": 0},
        )

    def flop(self, lengths: list[int]) -> int:
        """FLOP of the matrix products, including those of attention, without padding."""
        products = 2 * sum(lengths) * 12 * self.hidden_size**2
        scores = sum(4 * n * n * self.hidden_size for n in lengths)
        return self.num_layers * (products + scores)


BASE = Model("BERT-base", 12, 768, 12, 24576, 64, max_length=1024)
LARGE = Model("BERT-large", 24, 1024, 16, 12288, 32)
LARGE_MANY = replace(LARGE, max_tokens=49152, max_sequences=256)
MINILM = Model("MiniLM", 6, 384, 12, 12288, 64)
# Limits for many short texts.
BASE_SHORT = replace(BASE, max_tokens=25600, max_sequences=4096)
MINILM_SHORT = replace(MINILM, max_tokens=25600, max_sequences=4096)


@dataclass(frozen=True)
class Workload:
    model: Model
    batch: int
    max_length: int
    original_ms: float | None = None  # the time of ByteTransformer itself; see ORIGINAL
    quick: bool = False  # whether --quick includes it
    min_length: int | None = None  # None: a fifth of the longest
    mean_length: int | None = None  # if given, most lengths are near it and few near the longest

    @property
    def name(self) -> str:
        shortest = "" if self.min_length is None else f"{self.min_length}.."
        mean = "" if self.mean_length is None else f", mean {self.mean_length}"
        return f"{self.model.name} {self.batch} x {shortest}{self.max_length}{mean}"

    def lengths(self) -> list[int]:
        if self.mean_length is not None:
            return skewed_lengths(self.batch, self.max_length, self.mean_length)
        drawn = uniform_lengths(self.batch, self.max_length, self.min_length)
        if self.original_ms is None:
            return drawn
        return shifted(drawn, self.batch * int(0.6 * self.max_length), self.max_length)

    def tokens(self) -> tuple[Any, Any]:
        """ids int32 [T] and cu_seqlens int32 [B + 1]."""
        cu_seqlens = np.cumsum([0, *self.lengths()], dtype=np.int32)
        ids = np.random.default_rng(1).integers(0, 30522, cu_seqlens[-1]).astype(np.int32)
        return ids, cu_seqlens


def uniform_lengths(batch: int, longest: int, shortest: int | None = None) -> list[int]:
    """Lengths that are uniform from the shortest, by default 0.2 times the longest, to the longest,
    which the first one has."""
    generator = torch.Generator().manual_seed(0)
    low = max(1, int(0.2 * longest)) if shortest is None else shortest
    lengths: list[int] = torch.randint(low, longest + 1, (batch,), generator=generator).tolist()
    lengths[0] = longest
    return lengths


def skewed_lengths(batch: int, longest: int, mean: int) -> list[int]:
    """Lengths with the given mean, of a gamma distribution of shape 8, which has a longer tail
    above than below. The first is the longest."""
    drawn = np.random.default_rng(0).gamma(8, mean / 8, batch).astype(int)
    lengths: list[int] = np.clip(drawn, 16, longest).tolist()
    lengths[0] = longest
    return shifted(lengths, batch * mean, longest)


def shifted(lengths: list[int], total: int, longest: int) -> list[int]:
    """Changes all lengths but the first by 1, in turn, until they add up to `total`. A single
    sequence stays as it is."""
    result = list(lengths)
    difference, i = total - sum(result), 1
    while difference and len(result) > 1:
        step = 1 if difference > 0 else -1
        if 1 <= result[i] + step <= longest:
            result[i] += step
            difference -= step
        i = i % (len(result) - 1) + 1
    return result


WORKLOADS = (
    Workload(BASE, 1, 128, quick=True),
    Workload(BASE, 1, 512),
    Workload(BASE, 8, 256),
    Workload(BASE, 16, 64),
    Workload(BASE, 16, 128),
    Workload(BASE, 16, 256),
    Workload(BASE, 16, 512, quick=True),
    Workload(BASE, 16, 1024),
    Workload(BASE, 64, 512),
    Workload(LARGE, 32, 512, quick=True),
    Workload(LARGE_MANY, 256, 384, mean_length=177),  # questions with passages, as SQuAD's
    Workload(MINILM, 64, 256, quick=True),
    Workload(BASE_SHORT, 1024, 32, min_length=8),
    Workload(BASE_SHORT, 4096, 9, min_length=3),
    Workload(MINILM_SHORT, 1024, 32, min_length=8),
    Workload(MINILM_SHORT, 4096, 9, min_length=3),
)

ORIGINAL = (
    "ByteTransformer's released BERT-base layers (fp16), built for sm_90 and run on an NVIDIA H200 "
    "(driver 580.159, 2026-11-20): the fastest of several variants, in a CUDA graph, without its "
    "copy of the token count to the host in every layer. From that run, not from this one."
)
# The mean is exactly 0.6 of the longest, so a batch has batch x int(0.6 longest) tokens. A single
# sequence has the whole length.
ORIGINAL_WORKLOADS = tuple(
    Workload(BASE, batch, longest, milliseconds)
    for batch, longest, milliseconds in (
        (1, 128, 0.495),
        (1, 512, 0.706),
        (16, 64, 0.635),
        (16, 128, 0.890),
        (16, 256, 1.49),
        (16, 384, 2.64),
        (16, 512, 3.48),
        (16, 768, 5.15),
        (16, 1024, 7.37),
    )
)


class Loadable(Protocol):
    """A model from which a session can be loaded."""

    @property
    def spec(self) -> Json: ...
    @property
    def max_tokens(self) -> int: ...
    @property
    def max_sequences(self) -> int: ...


def random_weights(model: Loadable) -> dict[str, Tensor]:
    """Random weights in float16 on the GPU, by the names of docs/developer/tensors.md:
    activations stay near 1, attention is far from uniform, and norms are not the identity."""
    generator = torch.Generator("cuda").manual_seed(0)
    tensors = {}
    for name, shape in weight_shapes(with_defaults(model.spec)).items():
        values = torch.randn(shape, generator=generator, device="cuda")
        if ".norm." in name:
            values = 0.2 * values + name.endswith("weight")
        elif not name.startswith("embeddings."):
            values *= 1.5 * shape[-1] ** -0.5
        tensors[name] = values.half()
    return tensors


def load_session(
    model: Loadable, weights: dict[str, Tensor], folder: Path, dtype: Dtype = "float16"
) -> packhorse.Session:
    """Loads the model on the first GPU, from a folder that is written first."""
    write_model(folder, model.spec, {name: x.cpu().numpy() for name, x in weights.items()})
    return packhorse.Session.load(
        folder,
        "cuda:0",
        dtype,
        max_tokens=model.max_tokens,
        max_sequences=model.max_sequences,
    )
