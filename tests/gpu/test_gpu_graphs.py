"""Recorded graphs serve every composition of their bucket, and give what the eager path gives.

Batches with position ids are not recorded. So a batch that is given the position ids which it has
anyway runs on the eager path.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import reference
import reference_encoder
from cases import offsets
from gpu_support import DEVICE, Precision
from models import random_tensors, tiny_spec, write_model
from packhorse import PackedTokens, Session
from test_gpu_models import as_seen, check_hidden

SPEC = tiny_spec(hidden_size=64, num_heads=2, intermediate_size=128)
MAX_TOKENS, MAX_SEQUENCES = 640, 24
BUCKETS = [16, 32, 64, 128, 144, 192, 256, 288, 384, 512, 576, 640]
OUTPUTS = ["hidden", "embedding", "pooled"]


@pytest.fixture(scope="module")
def session(
    kernels: str, precision: Precision, tmp_path_factory: pytest.TempPathFactory
) -> Session:
    folder = write_model(tmp_path_factory.mktemp("graphs"), SPEC)
    return Session.load(
        folder, DEVICE, precision.name, max_tokens=MAX_TOKENS, max_sequences=MAX_SEQUENCES
    )


def compositions(tokens: int, count: int, random: np.random.Generator) -> list[list[int]]:
    """Returns lists of random lengths that add up to `tokens`. Some are 0, none is above the
    model's 300."""
    found: list[list[int]] = []
    while len(found) < count:
        sequences = int(random.integers(1, MAX_SEQUENCES + 1))
        cuts = np.sort(random.integers(0, tokens + 1, sequences - 1))
        lengths = np.diff([0, *cuts, tokens]).tolist()
        if max(lengths) <= 300:
            found.append(lengths)
    return found


def random_batch(lengths: list[int], random: np.random.Generator) -> PackedTokens:
    total = sum(lengths)
    types = random.integers(0, 2, total) if random.integers(2) else None
    return PackedTokens(random.integers(0, 50, total), offsets(lengths), type_ids=types)


def eager(batch: PackedTokens) -> PackedTokens:
    own = reference.positions(batch.cu_seqlens)
    return PackedTokens(batch.ids, batch.cu_seqlens, batch.type_ids, own)


def test_every_composition(session: Session) -> None:
    """The order is random, so that small batches follow large ones and the other way round."""
    random = np.random.default_rng(0)
    sizes = [min(size + more, MAX_TOKENS) for size in BUCKETS for more in (-1, 0, 1)]
    batches = [
        random_batch(lengths, random)
        for tokens in [*sizes, *range(1, 16)]
        for lengths in compositions(tokens, 6, random)
    ]
    for i in random.permutation(len(batches)):
        found = session.run(batches[i], outputs=OUTPUTS)
        expected = session.run(eager(batches[i]), outputs=OUTPUTS)
        for name in OUTPUTS:
            same = getattr(found, name).tobytes() == getattr(expected, name).tobytes()
            assert same, (name, np.diff(batches[i].cu_seqlens), batches[i].type_ids is not None)


@pytest.mark.parametrize("tokens", [1, 16, 17, 100, 383, 640])
def test_against_float64(session: Session, precision: Precision, tokens: int) -> None:
    random = np.random.default_rng(tokens)
    seen = as_seen(random_tensors(SPEC), precision)
    for lengths in compositions(tokens, 3, random):
        batch = random_batch(lengths, random)
        expected = reference_encoder.encoder(
            SPEC, seen, batch.ids, batch.cu_seqlens, batch.type_ids
        )
        check_hidden(session.run(batch).hidden, expected, precision)


def test_position_ids(session: Session, precision: Precision) -> None:
    random = np.random.default_rng(0)
    seen = as_seen(random_tensors(SPEC), precision)
    for lengths in compositions(200, 3, random):
        batch = random_batch(lengths, random)
        position_ids = random.integers(0, 300, 200)
        moved = PackedTokens(batch.ids, batch.cu_seqlens, batch.type_ids, position_ids)
        expected = reference_encoder.encoder(
            SPEC, seen, batch.ids, batch.cu_seqlens, batch.type_ids, position_ids
        )
        check_hidden(session.run(moved).hidden, expected, precision)
        assert np.abs(session.run(batch).hidden - session.run(moved).hidden).max() > 0.01


def test_a_large_bucket(precision: Precision, tmp_path: Path) -> None:
    """Large batches have an embedding kernel of their own, which must find where the tokens end."""
    folder = write_model(tmp_path, tiny_spec(hidden_size=512, num_heads=8, intermediate_size=64))
    session = Session.load(folder, DEVICE, precision.name, max_tokens=8192, max_sequences=64)
    batch = random_batch([300] * 22 + [0, 77, 1], np.random.default_rng(0))
    hidden = session.run(batch).hidden
    assert hidden.tobytes() == session.run(eager(batch)).hidden.tobytes()
    for begin, end in [(0, 300), (6600, 6677), (6677, 6678)]:
        types = None if batch.type_ids is None else batch.type_ids[begin:end]
        alone = PackedTokens(batch.ids[begin:end], [0, end - begin], type_ids=types)
        assert session.run(alone).hidden.tobytes() == hidden[begin:end].tobytes()


def test_the_last_bucket_is_as_large_as_the_plan(precision: Precision, tmp_path: Path) -> None:
    folder = write_model(tmp_path, SPEC)
    for max_tokens in (1, 15, 16, 17, 25, 300):
        session = Session.load(folder, DEVICE, precision.name, max_tokens=max_tokens)
        batch = PackedTokens(np.arange(max_tokens) % 50, [0, max_tokens])
        expected = session.run(eager(batch)).hidden
        assert session.run(batch).hidden.tobytes() == expected.tobytes()
