"""Batches on the device that are refused: the messages, and that other runs are not affected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from consumers import BATCH, LENGTHS, OUTPUTS, TORCH, bits, load, on_device, variants
from dlpack_producer import Interface, Producer
from models import tiny_spec, write_model
from packhorse import PackedTokens, Session, ops


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    folder: Path = write_model(tmp_path_factory.mktemp("device_errors"), tiny_spec())
    return load(folder)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"ids": (17, 50)}, r"ids\[17\] = 50 is out of range"),
    ({"ids": (0, -1)}, r"ids\[0\] = -1"),
    ({"ids": (237, -(2**31))}, r"ids\[237\] = -2147483648"),
    ({"ids": (100, 2**31 - 1)}, r"ids\[100\] = 2147483647"),
    ({"type_ids": (3, 2)}, r"type_ids\[3\] = 2"),
    ({"type_ids": (3, -5)}, r"type_ids\[3\] = -5"),
    ({"position_ids": (200, 300)}, r"position_ids\[200\] = 300"),
    ({"position_ids": (200, -1)}, r"position_ids\[200\] = -1"),
    ({"cu_seqlens": (0, 1)}, r"cu_seqlens\[0\] = 1"),
    ({"cu_seqlens": (2, 50)}, r"cu_seqlens decreases: cu_seqlens\[3\] = 43 after 50"),
    ({"cu_seqlens": (3, -9)}, r"cu_seqlens decreases: cu_seqlens\[3\] = -9 after 40"),
    ({"cu_seqlens": (6, 237)}, r"cu_seqlens\[6\] = 237, but there are 238 tokens"),
    ({"cu_seqlens": (6, 2**31 - 1)}, r"cu_seqlens\[6\] = 2147483647, but there are 238 tokens"),
]


@pytest.mark.parametrize(("change", "message"), BAD, ids=str)
def test_bad_batches(session: Session, change: dict[str, Any], message: str) -> None:
    batch = variants(LENGTHS[0])[3]
    expected = session.run(BATCH, outputs=OUTPUTS)
    for name, (index, value) in change.items():
        getattr(batch, name)[index] = value
    with pytest.raises(ValueError, match=message):
        session.run(batch)
    there = on_device(batch)
    # `with` gives the slots back on failure, too; the frame of a failed test would keep them.
    with session.run(on_device(BATCH), outputs=OUTPUTS) as good:
        with session.run(there, outputs=OUTPUTS) as result:
            for read in (result.check, result.hidden.numpy, result.pooled.check, result.check):
                with pytest.raises(ValueError, match=message):
                    read()
            hidden = torch.from_dlpack(result.hidden).clone()
            assert hidden.isfinite().all()
            assert hidden.any() != ("cu_seqlens" in change)
            assert bits(session.run(BATCH, outputs=OUTPUTS)) == bits(expected)
        with pytest.raises(ValueError, match=message):
            session.run(there, on_device=False)
        # Results of other runs, before and after, are not affected.
        assert bits(good) == bits(expected)
    assert bits(session.run(on_device(BATCH), outputs=OUTPUTS)) == bits(expected)


def test_a_sequence_that_is_too_long(session: Session) -> None:
    there = (TORCH.put(np.arange(400) % 50), TORCH.put([0, 20, 330, 400]))
    with pytest.raises(ValueError, match="sequence 1 has 310 tokens; .* max_seqlen = 300"):
        session.run(there).hidden.numpy()


def test_what_the_host_sees(session: Session) -> None:
    expected = bits(session.run(BATCH, outputs=OUTPUTS))
    ids, offsets = TORCH.put([1, 2, 3]), TORCH.put([0, 3])
    pinned = torch.zeros(3, dtype=torch.int32).pin_memory()
    host = np.zeros(3, np.int32)
    for batch, error, message in (
        ((ids.long(), offsets), ValueError, "ids is int64, expected int32: convert it"),
        ((ids, offsets.long()), ValueError, "cu_seqlens is int64, expected int32"),
        ((ids.float(), offsets), ValueError, "ids is float32"),
        ((TORCH.put(range(6))[::2], offsets), ValueError, "ids is not contiguous"),
        ((ids, [0, 3]), ValueError, "a tuple of Tensor and list, which may mean two things"),
        ((ids, offsets.cpu()), ValueError, "ids on a device, but cu_seqlens in host memory"),
        ((ids[None], offsets), ValueError, r"ids has shape \(1, 3\)"),
        ((ids, offsets[:0]), ValueError, "cu_seqlens is empty"),
        ((TORCH.put([1] * 513), offsets), ValueError, "513 tokens.*max_tokens = 512"),
        ((ids, TORCH.put([3] * 34)), ValueError, "33 sequences.*max_sequences = 32"),
        (
            (Producer(ids.data_ptr(), (3,), device=(2, 1)), offsets),
            ValueError,
            "ids lies on cuda:1",
        ),
        ((Interface(host.ctypes.data, (3,)), offsets), ValueError, "ids is host memory"),
        ((Interface(pinned.data_ptr(), (3,)), offsets), ValueError, "ids is host memory"),
        ((ids, Interface(0, (2,))), ValueError, "cu_seqlens is empty"),
    ):
        with pytest.raises(error, match=message):
            session.run(batch)
        assert bits(session.run(BATCH, outputs=OUTPUTS)) == expected, message


@pytest.mark.parametrize("size", [-5, 2**31, 2**31 + 3, 2**40])
def test_sizes_that_offsets_cannot_count(session: Session, size: int) -> None:
    """An array that claims such a size is refused before anything of it is read."""
    expected = bits(session.run(BATCH, outputs=OUTPUTS))
    ids, offsets = TORCH.put([1, 2, 3]), TORCH.put([0, 3])
    many = Interface(ids.data_ptr(), (size,))
    with pytest.raises(ValueError, match=f"{size} tokens"):
        session.run((many, offsets))
    word = torch.ones(50, 64, dtype=torch.float16, device="cuda")
    with pytest.raises(
        ValueError, match=f"{size} tokens and 1 sequences; expected 0 to 2147483647"
    ):
        ops.embed(many, offsets, word)
    with pytest.raises(ValueError, match="expected 0 to 2147483647 rows"):
        ops.pool(Interface(word.data_ptr(), (size, 64), "<f2"), offsets)
    assert bits(session.run(BATCH, outputs=OUTPUTS)) == expected


def test_anything_at_all(session: Session) -> None:
    """Random numbers in every array give errors, and the session still works."""
    expected = bits(session.run(BATCH, outputs=OUTPUTS))
    random = np.random.default_rng(0)
    refused = 0
    for i in range(200):
        high = int(random.choice([4, 60, 400, 2**31 - 1]))
        tokens, sequences = int(random.integers(1, 513)), int(random.integers(0, 33))
        arrays = [random.integers(-1 if i % 2 else 0, high, n) for n in (tokens, sequences + 1)]
        extra = [random.integers(-2, high, tokens) if random.integers(2) else None for _ in "ab"]
        there = on_device(PackedTokens(*arrays, *extra))
        with session.run(there, outputs=OUTPUTS) as result:
            assert torch.from_dlpack(result.hidden).isfinite().all()
            try:
                result.check()
            except ValueError:
                refused += 1
        if i % 20 == 0:
            assert bits(session.run(BATCH, outputs=OUTPUTS)) == expected
    assert refused > 150
    assert bits(session.run(BATCH, outputs=OUTPUTS)) == expected
