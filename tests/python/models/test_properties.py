"""Properties over random batches (hypothesis)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import tiny_spec, write_model
from packhorse import PackedTokens, Session
from precisions import Precision

VOCAB, POSITIONS, MAX_TOKENS, MAX_SEQUENCES = 10, 6, 12, 4

token = st.integers(0, VOCAB - 1)
token_sequences = st.lists(st.lists(token, max_size=POSITIONS), max_size=8)


def small_spec() -> dict[str, Any]:
    return tiny_spec(
        vocab_size=VOCAB,
        hidden_size=24,
        num_heads=3,
        positions={"kind": "learned", "count": POSITIONS + 2, "offset": 2},
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("small"), small_spec())


@pytest.fixture(scope="module")
def small(folder: Path, device: str) -> Session:
    return Session.load(
        folder, device, max_tokens=MAX_TOKENS, max_sequences=MAX_SEQUENCES, threads=1
    )


@pytest.fixture(scope="module")
def ample(folder: Path, device: str, precision: Precision) -> Session:
    return Session.load(folder, device, precision.name, max_tokens=512, threads=2)


# --- packing


def rows_of(batch: PackedTokens, values: Sequence[int]) -> list[list[int]]:
    return [list(values[a:b]) for a, b in itertools.pairwise(batch.cu_seqlens.tolist())]


@given(token_sequences)
def test_pack_keeps_every_sequence(sequences: list[list[int]]) -> None:
    batch = packhorse.pack(sequences, type_ids=[[t % 2 for t in s] for s in sequences])
    assert rows_of(batch, batch.ids.tolist()) == sequences
    assert batch.type_ids is not None
    assert [t % 2 for t in batch.ids.tolist()] == batch.type_ids.tolist()
    assert batch.lengths.tolist() == [len(s) for s in sequences]
    again = packhorse.pack(np.split(batch.ids, batch.cu_seqlens[1:-1])) if sequences else batch
    assert again.ids.tolist() == batch.ids.tolist()
    assert again.cu_seqlens.tolist() == batch.cu_seqlens.tolist()


@given(token_sequences, st.randoms(use_true_random=False), st.integers(0, 3))
def test_padding_goes_wherever_it_lies(sequences: list[list[int]], random: Any, extra: int) -> None:
    width = max(map(len, sequences), default=0) + extra
    ids = np.full((len(sequences), width), 7)
    mask = np.zeros((len(sequences), width), int)
    for row, sequence in enumerate(sequences):
        places = sorted(random.sample(range(width), len(sequence)))
        ids[row, places] = sequence
        mask[row, places] = 1
    batch = packhorse.pack(ids, mask)
    assert rows_of(batch, batch.ids.tolist()) == sequences


# --- batches


def chunks(sequences: list[list[int]], sizes: Iterator[int]) -> Iterator[list[list[int]]]:
    begin = 0
    while begin < len(sequences):
        end = begin + next(sizes)
        yield sequences[begin:end]
        begin = end


@settings(max_examples=60)
@given(
    sequences=st.lists(st.lists(token, max_size=POSITIONS), max_size=24),
    sizes=st.lists(st.integers(1, 9), min_size=24, max_size=24),
)
def test_any_partition_gives_the_same_bits(
    ample: Session, sequences: list[list[int]], sizes: list[int]
) -> None:
    whole = ample.run(sequences, outputs=["hidden", "embedding"])
    parts = [
        ample.run(chunk, outputs=["hidden", "embedding"])
        for chunk in chunks(sequences, iter(sizes))
    ]
    for name in ("hidden", "embedding"):
        joined = b"".join(getattr(part, name).tobytes() for part in parts)
        assert joined == getattr(whole, name).tobytes()


@settings(max_examples=60)
@given(token_sequences)
def test_run_many_gives_the_same_bits_as_run(
    small: Session, folder: Path, device: str, sequences: list[list[int]]
) -> None:
    one_by_one = [small.run([s]).hidden.tobytes() for s in sequences]
    many = small.run_many(sequences)
    assert [rows.tobytes() for rows in many.unpack()] == one_by_one


# --- what a session accepts


def is_valid(batch: PackedTokens) -> bool:
    """The contract of a batch, in plain Python."""
    ids, offsets = batch.ids.tolist(), batch.cu_seqlens.tolist()
    lengths = [b - a for a, b in itertools.pairwise(offsets)]
    if offsets[0] != 0 or offsets[-1] != len(ids) or any(n < 0 for n in lengths):
        return False
    if len(ids) > MAX_TOKENS or len(lengths) > MAX_SEQUENCES or max(lengths, default=0) > POSITIONS:
        return False
    types = [] if batch.type_ids is None else batch.type_ids.tolist()
    places = [] if batch.position_ids is None else batch.position_ids.tolist()
    return (
        all(0 <= i < VOCAB for i in ids)
        and all(0 <= t < 2 for t in types)
        and all(0 <= p < POSITIONS for p in places)
    )


@st.composite
def nearly_valid_batches(draw: st.DrawFn) -> PackedTokens:
    """Batches in which at most one thing is wrong, and sometimes nothing."""
    damage = draw(
        st.sampled_from(["nothing", "size", "order", "offset", "ids", "types", "positions"])
    )
    extra = int(damage == "size")
    lengths = draw(st.lists(st.integers(0, POSITIONS + extra), max_size=MAX_SEQUENCES + extra))
    if not extra:
        while sum(lengths) > MAX_TOKENS:
            lengths.pop()
    count = sum(lengths)
    offsets = [0, *itertools.accumulate(lengths)]
    if damage == "offset":
        offsets[draw(st.integers(0, len(offsets) - 1))] = draw(st.integers(-1, count + 1))
    if damage == "order":
        offsets[1:-1] = reversed(offsets[1:-1])

    def values(limit: int, name: str) -> list[int]:
        inside = draw(st.lists(st.integers(0, limit - 1), min_size=count, max_size=count))
        if inside and damage == name:
            inside[draw(st.integers(0, count - 1))] = draw(st.sampled_from([-1, 0, limit]))
        return inside

    return PackedTokens(
        values(VOCAB, "ids"),
        offsets,
        values(2, "types") if draw(st.booleans()) else None,
        values(POSITIONS, "positions") if draw(st.booleans()) else None,
    )


@settings(max_examples=250)
@given(nearly_valid_batches())
def test_exactly_the_valid_batches_run(small: Session, batch: PackedTokens) -> None:
    if is_valid(batch):
        result = small.run(batch, outputs=["hidden", "embedding", "pooled"])
        assert np.isfinite(result.hidden).all()
        assert result.embedding.shape == result.pooled.shape == (batch.num_sequences, 24)
    else:
        with pytest.raises(ValueError, match="cu_seqlens|ids|tokens|sequences"):
            small.run(batch)
