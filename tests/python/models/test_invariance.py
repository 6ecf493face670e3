"""The bits of a sequence do not depend on its company: neighbours, position, threads, plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import (
    SPEC_OPTIONS,
    classifier,
    random_sequences,
    random_tensors,
    tiny_spec,
    write_model,
)
from packhorse import RunResult, Session, ops
from precisions import PRECISIONS, Precision, available

POISON = 49  # an id whose row overflows in the embedding's LayerNorm
OUTPUTS = ["hidden", "embedding", "pooled", "logits"]
TOKEN_LABELS = 17  # tells a classifier of tokens from one of sequences
SPECS: dict[str, dict[str, Any]] = {
    "tiny": classifier("pooler", 3),
    "odd": {
        **classifier("tokens", TOKEN_LABELS),
        "hidden_size": 78,
        "num_heads": 3,
        "intermediate_size": 133,
    },  # heads of 26
    "wide": {
        **classifier("mean", 130, dense={"activation": "gelu", "norm": True}),
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_layers": 1,
    },
    # Pre-norm, two kinds of windows and rotations, gated, shared layers, narrow embeddings.
    "modern": {
        **SPEC_OPTIONS["shared-layers"],
        **SPEC_OPTIONS["narrow-embeddings"],
        **SPEC_OPTIONS["rope-of-two-kinds"],
        **classifier("tokens", TOKEN_LABELS, dense={"activation": "relu", "norm": True}),
        "norm": {"kind": "layer", "placement": "pre", "eps": 1e-6, "bias": False},
        "intermediate_size": 133,
        "ffn": {"kind": "gated", "activation": "gelu", "up_bias": False},
    },
    "buckets": {**SPEC_OPTIONS["buckets"], **classifier("cls", 1, dense={"activation": "tanh"})},
    "disentangled": {
        **SPEC_OPTIONS["disentangled"],
        **SPEC_OPTIONS["convolution"],
        **classifier("cls", 2),
    },
}
Sequences = list[np.ndarray]


@pytest.fixture(
    scope="module", params=[*PRECISIONS, Precision("int8", 0)], ids=lambda precision: precision.name
)
def precision(request: pytest.FixtureRequest, device: str) -> Precision:
    return available(request.param, device)


@pytest.fixture(scope="module", params=SPECS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = tiny_spec(**SPECS[request.param])
    tensors = random_tensors(spec)
    row = tensors["embeddings.word"][POISON]
    row[:] = 3e38
    row[::4] = -3e38
    return write_model(tmp_path_factory.mktemp("invariance"), spec, tensors)


@pytest.fixture(scope="module")
def sequences() -> Sequences:
    return random_sequences([3, 65, 1, 130, 17, 64, 2, 200, 33, 5], vocab_size=POISON)


def load(folder: Path, device: str, precision: Precision, **options: Any) -> Session:
    return Session.load(
        folder, device, precision.name, **{"max_tokens": 1024, "max_sequences": 32, **options}
    )


@pytest.fixture(scope="module")
def alone(
    folder: Path, device: str, precision: Precision, sequences: Sequences
) -> list[tuple[bytes, ...]]:
    """The bits of each sequence run by itself."""
    session = load(folder, device, precision, threads=1)
    results = [session.run([s], outputs=OUTPUTS) for s in sequences]
    assert all(np.isfinite(getattr(r, name)).all() for r in results for name in OUTPUTS)
    return [bits(result)[0] for result in results]


def bits(result: RunResult) -> list[tuple[bytes, ...]]:
    """Bits of every sequence of a result: hidden, embedding, pooled, logits."""
    logits = list(result.logits)
    if result.logits.shape[1] == TOKEN_LABELS:
        logits = np.split(result.logits, result.cu_seqlens[1:-1])
    rows = zip(result.unpack(), result.embedding, result.pooled, logits, strict=True)
    return [tuple(part.tobytes() for part in parts) for parts in rows]


def check(session: Session, batch: Sequences, expected: list[tuple[bytes, ...] | None]) -> None:
    """Runs a batch; None stands for a sequence whose bits are not of interest."""
    found = bits(session.run(batch, outputs=OUTPUTS))
    wrong = [i for i, want in enumerate(expected) if want is not None and found[i] != want]
    assert not wrong, f"sequences {wrong} of lengths {[len(s) for s in batch]} changed"


@pytest.mark.parametrize("threads", [1, 2, pytest.param(3, marks=pytest.mark.arm), 5])
def test_thread_counts(
    folder: Path,
    device: str,
    precision: Precision,
    sequences: Sequences,
    alone: list[tuple[bytes, ...]],
    threads: int,
) -> None:
    session = load(folder, device, precision, threads=threads)
    check(session, sequences, list(alone))
    check(session, sequences[::-1], list(alone[::-1]))
    for sequence, want in zip(sequences, alone, strict=True):
        check(session, [sequence], [want])


def test_every_position(
    folder: Path,
    device: str,
    precision: Precision,
    sequences: Sequences,
    alone: list[tuple[bytes, ...]],
) -> None:
    """Each sequence in every place, and behind 1 to 67 tokens of a neighbour."""
    session = load(folder, device, precision, threads=2)
    for shift in range(len(sequences)):
        rotated = [*sequences[shift:], *sequences[:shift]]
        check(session, rotated, [*alone[shift:], *alone[:shift]])
    for i in (0, 1, 3):
        for before in range(1, 71, 6):
            neighbour = random_sequences([before], POISON, seed=before)[0]
            check(session, [neighbour, sequences[i]], [None, alone[i]])
            check(session, [sequences[i], neighbour], [alone[i], None])


def test_copies_of_one_sequence_agree(
    folder: Path, device: str, precision: Precision, sequences: Sequences, alone: Any
) -> None:
    session = load(folder, device, precision, threads=3)
    for i in (1, 2, 4):
        check(session, [sequences[i]] * 15, [alone[i]] * 15)
        check(session, [sequences[i], sequences[i][:0]] * 15, [alone[i], None] * 15)


def test_neighbours_that_overflow(
    folder: Path, device: str, precision: Precision, sequences: Sequences, alone: Any
) -> None:
    session = load(folder, device, precision, threads=2)
    for length in (1, 20, 64, 131):
        poison = np.full(length, POISON, np.int32)
        assert not np.isfinite(session.run([poison]).hidden).any()
        for i in range(0, len(sequences), 3):
            batch = [poison, *sequences[i : i + 3], poison, *sequences[:i], poison]
            check(session, batch, [None, *alone[i : i + 3], None, *alone[:i], None])
            # The next run does not see NaN and infinity that the poison leaves in buffers.
            check(session, sequences[i : i + 1], alone[i : i + 1])


def test_plans(
    folder: Path, device: str, precision: Precision, sequences: Sequences, alone: Any
) -> None:
    for max_tokens in (200, 333, 5000):
        session = load(folder, device, precision, max_tokens=max_tokens, max_sequences=3)
        assert bits(session.run_many(sequences, outputs=OUTPUTS)) == alone


@pytest.mark.parametrize(
    ("k", "n"),
    [(8, 8), (33, 17), (48, 96), (48, 576), (64, 577), (129, 257), (384, 1152), (1536, 384)],
)
def test_rows_of_dense_layers(device: str, precision: Precision, k: int, n: int) -> None:
    random = np.random.default_rng(k)
    x, weight = random.normal(0, 1, (600, k)), random.normal(0, 1, (n, k))
    residual, norm = random.normal(0, 1, (600, n)), (np.ones(n), np.zeros(n), 1e-5)
    options: dict[str, Any] = {"device": device, "dtype": precision.name, "activation": "gelu"}
    whole = ops.gemm(x, weight, residual=residual, norm=norm, **options)
    plain = ops.gemm(x, weight, **options)
    for begin, end in [(0, 1), (0, 63), (1, 65), (63, 64), (64, 129), (77, 200), (300, 599)]:
        part = ops.gemm(x[begin:end], weight, residual=residual[begin:end], norm=norm, **options)
        assert part.tobytes() == whole[begin:end].tobytes(), (begin, end)
        part = ops.gemm(x[begin:end], weight, **options)
        assert part.tobytes() == plain[begin:end].tobytes(), (begin, end)
