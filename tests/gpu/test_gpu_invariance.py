"""The bits of a sequence do not depend on its company, its place, or the session's size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_support import DEVICE, Precision
from models import Tensors, random_sequences, random_tensors, tiny_spec, write_model
from packhorse import RunResult, Session

POISON = 49  # an id whose activations overflow
OUTPUTS = ["hidden", "embedding", "pooled"]
POSITIONS = {"kind": "learned", "count": 1024, "offset": 0}
SPECS: dict[str, dict[str, Any]] = {
    "tiny": {},
    "heads-of-26": {"hidden_size": 312, "num_heads": 12, "intermediate_size": 600},
    "BERT-base": {"hidden_size": 768, "num_heads": 12, "intermediate_size": 3072},
    "ModernBERT": {
        "hidden_size": 384,
        "num_heads": 6,
        "num_layers": 3,
        "intermediate_size": 600,
        "norm": {"kind": "layer", "placement": "pre", "eps": 1e-5, "bias": False},
        "attention": {
            "mask": "bidirectional",
            "local": {"window": 64, "layers": [1, 2]},
            "rope": {"theta": 160000.0, "local_theta": 10000.0},
        },
        "ffn": {"kind": "gated", "activation": "gelu", "up_bias": False, "down_bias": False},
    },
    "decoder": {
        "hidden_size": 256,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 128,
        "intermediate_size": 400,
        "norm": {"kind": "layer", "placement": "pre", "eps": 1e-6},
        "attention": {"mask": "causal", "qk_norm": True, "rope": {"theta": 1e6}},
        "ffn": {"kind": "gated", "activation": "silu", "up_bias": False, "down_bias": False},
    },
}
LENGTHS = [3, 65, 1, 130, 17, 64, 2, 1000, 129, 128, 5]
Bits = tuple[bytes, ...]  # hidden, embedding and pooled of one sequence


def bits(result: RunResult) -> list[Bits]:
    rows = zip(result.unpack(), result.embedding, result.pooled, strict=True)
    return [tuple(part.tobytes() for part in parts) for parts in rows]


class Case:
    """A session, some sequences, and the bits of each when it runs alone."""

    def __init__(self, folder: Path, dtype: str) -> None:
        self.folder, self.dtype = folder, dtype
        self.session = self.load(max_tokens=4096, max_sequences=64)
        self.sequences = random_sequences(LENGTHS, POISON)
        alone = [self.session.run([s], outputs=OUTPUTS) for s in self.sequences]
        assert all(np.isfinite(getattr(r, name)).all() for r in alone for name in OUTPUTS)
        self.alone = [bits(result)[0] for result in alone]

    def load(self, **options: int) -> Session:
        return Session.load(self.folder, DEVICE, self.dtype, kv_tokens=0, **options)

    def check(self, batch: list[Any]) -> None:
        """Runs a batch of sequences, given by index, and of arrays whose bits are not compared."""
        rows = [self.sequences[one] if isinstance(one, int) else one for one in batch]
        found = bits(self.session.run(rows, outputs=OUTPUTS))
        wrong = [
            i for i, one in enumerate(batch) if isinstance(one, int) and found[i] != self.alone[one]
        ]
        assert not wrong, f"sequences {wrong} of lengths {[len(row) for row in rows]} changed"


def poison(tensors: Tensors, precision: Precision) -> None:
    """Changes weights, which must stay finite, so that the activations of POISON overflow, and
    those of no other id."""
    row = tensors["embeddings.word"][POISON]
    if precision.name == "bfloat16":
        # This row overflows in the LayerNorm of the embedding.
        row[:] = 3e38
        row[::4] = -3e38
        return
    # Here the first element of V overflows: it is over float16's 65504 for rows that point where
    # POISON does. The output layer multiplies that element by 0, but 0 x Inf is NaN.
    direction = np.where(np.arange(row.size) % 3, 1, -1) * row.size**-0.5
    row[:] = 3e4 * direction
    tensors["layers.0.attention.value.weight"][0] = 8.5e4 * row.size**-0.5 * direction
    tensors["layers.0.attention.output.weight"][:, 0] = 0


@pytest.fixture(scope="module", params=SPECS)
def folder(
    request: pytest.FixtureRequest, precision: Precision, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    spec = tiny_spec(positions=POSITIONS, **SPECS[request.param])
    tensors = random_tensors(spec)
    poison(tensors, precision)
    return write_model(tmp_path_factory.mktemp("invariance"), spec, tensors)


@pytest.fixture(scope="module")
def case(kernels: str, folder: Path, precision: Precision) -> Case:
    return Case(folder, precision.name)


def test_every_place(case: Case) -> None:
    everything = list(range(len(LENGTHS)))
    for shift in everything:
        case.check(everything[shift:] + everything[:shift])
    for i in (0, 1, 3):
        for before in range(1, 140, 9):
            neighbour = random_sequences([before], POISON, seed=before)[0]
            case.check([neighbour, i])
            case.check([i, neighbour])


def test_copies_agree(case: Case) -> None:
    for i in (1, 2, 4, 9):
        case.check([i] * 15)
        case.check([i, np.zeros(0, np.int32)] * 15)


def test_every_number_of_tokens(case: Case) -> None:
    """Batches around the size of every bucket, since buckets differ in tiles and kernels."""
    sizes = [16 * 2**i for i in range(9)] + [24 * 2**i for i in range(8)]
    for total in (size + more for size in sizes for more in (-1, 0, 1)):
        batch: list[Any] = []
        left = min(total, 4096)
        for i in (1, 2, 0, 3, 8, 5):
            if len(case.sequences[i]) <= left:
                batch.append(i)
                left -= len(case.sequences[i])
        lengths = [min(700, left - begin) for begin in range(0, left, 700)]
        case.check([*batch, *random_sequences(lengths, POISON, seed=total)])


def test_not_finite_neighbours(case: Case) -> None:
    for length in (1, 20, 64, 131):
        poison = np.full(length, POISON, np.int32)
        assert not np.isfinite(case.session.run([poison]).hidden).any()
        for i in range(0, len(LENGTHS), 3):
            case.check([poison, *range(i, min(i + 3, len(LENGTHS))), poison, *range(i), poison])
            # NaN and infinity that the poison leaves in buffers must not enter the next run.
            case.check([i])


def test_other_sessions(case: Case) -> None:
    for max_tokens, max_sequences in ((1000, 2), (1333, 3), (9000, 200)):
        session = case.load(max_tokens=max_tokens, max_sequences=max_sequences)
        assert bits(session.run_many(case.sequences, outputs=OUTPUTS)) == case.alone
