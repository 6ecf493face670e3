"""Padding ids that stand in a sequence: positions skip them, and so do classifiers of last
tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import PADDING, classifier, random_tensors, tiny_spec, write_model
from packhorse import PackedTokens, Session, pack
from padding import POSITIONS, counted, padded_sequences

LENGTHS = [17, 1, 128, 2, 9, 0, 65, 500]


@pytest.fixture
def load(tmp_path: Path, device: str) -> Callable[..., Session]:
    tensors = random_tensors(tiny_spec(positions=POSITIONS, **classifier("last", 3)))

    def load(name: str, **changes: Any) -> Session:
        return Session.load(write_model(tmp_path / name, tiny_spec(**changes), tensors), device)

    return load


@pytest.mark.parametrize("threads", [1, 2])
def test_positions_skip_padding(load: Callable[..., Session], threads: int) -> None:
    """Bit for bit what comes of the same positions, given by a caller."""
    session = load("skips", positions={**POSITIONS, "padding_id": PADDING})
    plain = load("plain", positions={**POSITIONS, "offset": 1})
    sequences = padded_sequences(LENGTHS)
    batch = pack(sequences)
    positions = counted(batch.ids, batch.cu_seqlens)
    expected = plain.run(PackedTokens(batch.ids, batch.cu_seqlens, None, positions)).hidden
    found = session.run(batch).hidden
    assert found.tobytes() == expected.tobytes()
    assert found.tobytes() != plain.run(batch).hidden.tobytes()
    for i, ids in enumerate(sequences):
        begin, end = batch.cu_seqlens[i : i + 2]
        assert session.run([ids]).hidden.tobytes() == found[begin:end].tobytes()
    # Positions that a caller gives are taken as they are.
    given = np.arange(len(batch.ids), dtype=np.int32) % 400
    one_more = load("one-more", positions=POSITIONS)
    both = [
        one.run(PackedTokens(batch.ids, batch.cu_seqlens, None, given)).hidden.tobytes()
        for one in (session, one_more)
    ]
    assert both[0] == both[1]


def test_the_last_token_that_is_no_padding(load: Callable[..., Session]) -> None:
    session = load("skips", positions=POSITIONS, **classifier("last", 3, padding_id=PADDING))
    whole = load("whole", positions=POSITIONS, **classifier("last", 3))
    sequences = padded_sequences(LENGTHS)
    logits = session.run(sequences, outputs=["logits"]).logits
    hidden = session.run(pack(sequences)).hidden
    weights = random_tensors(tiny_spec(positions=POSITIONS, **classifier("last", 3)))
    begin = 0
    for ids, found in zip(sequences, logits, strict=True):
        kept = np.flatnonzero(ids != PADDING)
        last = begin + (kept[-1] if len(kept) else 0)
        begin += len(ids)
        if not len(ids):
            assert not found.any()
            continue
        expected = weights["classifier.weight"] @ hidden[last] + weights["classifier.bias"]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
        alone = session.run([ids], outputs=["logits"]).logits
        assert alone.tobytes() == found.tobytes()
    changed = (logits != whole.run(sequences, outputs=["logits"]).logits).any(axis=1)
    ends = np.array([bool(len(ids)) and ids[-1] == PADDING for ids in sequences])
    ends[1] = ends[4] = False  # one token; padding alone, whose first and last are alike
    assert changed[ends].all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positions": {**POSITIONS, "padding_id": 50}}, "'positions.padding_id' is 50, expected"),
        ({"positions": {**POSITIONS, "offset": 0, "padding_id": 1}}, "padding_id' is not known"),
        (classifier("last", 3, padding_id=50), "'heads.classifier.padding_id' is 50, expected"),
        (classifier("cls", 3, padding_id=1), "padding_id' is not known"),
    ],
)
def test_refused(load: Callable[..., Session], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load("refused", **changes)
