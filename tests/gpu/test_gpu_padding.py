"""Padding ids that stand in a sequence, on every kernel of the embedding and of pooling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_support import DEVICE, Precision
from models import PADDING, classifier, random_tensors, tiny_spec, write_model
from packhorse import PackedTokens, Session, pack
from padding import POSITIONS, counted, padded_sequences

FEW = [17, 1, 128, 2, 9, 0, 65, 500]
MANY = FEW * 12 + [33, 64, 512, 31] * 4


@pytest.mark.parametrize("hidden_size", [64, 1024])
@pytest.mark.parametrize("lengths", [FEW, MANY, [1] * 70], ids=["few", "many", "of-one"])
def test_padding(
    precision: Precision, lengths: list[int], hidden_size: int, tmp_path: Path
) -> None:
    sizes: dict[str, Any] = {
        "hidden_size": hidden_size,
        "num_heads": hidden_size // 32,
        "num_layers": 1,
    }
    head = classifier("last", 3, padding_id=PADDING)
    tensors = random_tensors(tiny_spec(**sizes, positions=POSITIONS, **head))

    def load(**changes: Any) -> Session:
        folder = write_model(tmp_path, tiny_spec(**sizes, **changes), tensors)
        return Session.load(folder, DEVICE, precision.name, max_tokens=16384)

    session = load(positions={**POSITIONS, "padding_id": PADDING}, **head)
    plain = load(positions={**POSITIONS, "offset": 1}, **classifier("last", 3))
    sequences = padded_sequences(lengths)
    batch = pack(sequences)
    positions = counted(batch.ids, batch.cu_seqlens)
    given = PackedTokens(batch.ids, batch.cu_seqlens, None, positions)
    expected = plain.run(given).hidden
    found = session.run(batch, outputs=["hidden", "logits"])
    assert found.hidden.tobytes() == expected.tobytes()
    for i, ids in list(enumerate(sequences))[:12]:
        begin, end = batch.cu_seqlens[i : i + 2]
        alone = session.run([ids], outputs=["hidden", "logits"])
        assert alone.hidden.tobytes() == found.hidden[begin:end].tobytes()
        assert alone.logits[0].tobytes() == found.logits[i].tobytes()
        kept = np.flatnonzero(ids != PADDING)
        # A text that ends with a token that is no padding has the logits of plain pooling.
        cut = ids[: kept[-1] + 1] if len(kept) else ids[:1]
        if len(cut) == len(ids):
            ends = plain.run(PackedTokens(ids, [0, len(ids)], None, counted(ids, [0, len(ids)])),
                             outputs=["logits"]).logits  # fmt: skip
            assert ends[0].tobytes() == found.logits[i].tobytes()
