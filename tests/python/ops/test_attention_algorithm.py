"""Names of attention algorithms that may be asked for; tests/gpu tests the algorithms
themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from packhorse import Session, ops, plan_memory


def test_the_cpu_has_one(tiny_model: Path) -> None:
    rows = np.ones((3, 32), np.float32)
    plain = ops.attention(rows, rows, rows, [0, 3], num_heads=2)
    named = ops.attention(rows, rows, rows, [0, 3], num_heads=2, algorithm="auto")
    assert named.tobytes() == plain.tobytes()
    message = "algorithm is 'short': the CPU has one algorithm alone, expected 'auto'"
    with pytest.raises(ValueError, match=f"^{message}"):
        ops.attention(rows, rows, rows, [0, 3], num_heads=2, algorithm="short")
    with pytest.raises(ValueError, match=f"^attention_{message}"):
        Session.load(tiny_model, attention_algorithm="short")
    with pytest.raises(ValueError, match=f"^attention_{message}"):
        plan_memory(tiny_model, attention_algorithm="short")


def test_unknown(tiny_model: Path) -> None:
    rows = np.ones((3, 32), np.float32)
    names = "expected one of 'auto', 'hopper', 'online', 'short', 'grouped', 'bytetransformer'"
    with pytest.raises(ValueError, match=f"algorithm is 'flash', {names}"):
        ops.attention(rows, rows, rows, [0, 3], num_heads=2, algorithm="flash")
    with pytest.raises(ValueError, match=f"attention_algorithm is 'flash', {names}"):
        Session.load(tiny_model, attention_algorithm="flash")


def test_explain_says_nothing_where_there_is_no_choice(session: Session) -> None:
    if session.device != "cpu":
        pytest.skip("tests/gpu/test_gpu_attention_algorithms.py")
    assert session.explain([[1, 2, 3], []]) == []
    with pytest.raises(ValueError, match="ids"):
        session.explain([[10**6]])
