"""Sessions whose attention is computed by an algorithm that was asked for."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import packhorse
import pytest
import reference_encoder
from cases import offsets
from gpu_support import DEVICE, Precision
from models import SPEC_OPTIONS, random_tensors, tiny_spec, write_model
from packhorse import PackedTokens, Session
from test_gpu_models import as_seen, check_hidden

ALGORITHMS = ("auto", "hopper", "online", "short", "grouped", "bytetransformer")
SPEC = tiny_spec(
    hidden_size=128,
    num_heads=2,
    intermediate_size=256,
    positions={"kind": "learned", "count": 1200, "offset": 0},
)
LENGTHS = [5, 384, 0, 1, 385, 130, 1024, 1025, 64]


@pytest.fixture(params=ALGORITHMS)
def algorithm(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if name == "hopper" and not has_hopper_kernels():
        pytest.skip("needs compute capability 9.0, and a build for it")
    return name


@cache
def has_hopper_kernels() -> bool:
    """True if the device and this build have the kernels of Hopper."""
    rows = np.ones((1, 64), np.float32)
    try:
        packhorse.ops.attention(
            rows,
            rows,
            rows,
            [0, 1],
            num_heads=1,
            device=DEVICE,
            dtype="float16",
            algorithm="hopper",
        )
    except ValueError as error:
        if "needs a device of compute capability 9.0 and a build for it" in str(error):
            return False
        raise
    return True


def test_against_float64_and_alone(precision: Precision, algorithm: str, tmp_path: Path) -> None:
    """Results are right, and have the same bits in recorded graphs and without, in a batch and
    alone. Other algorithms give other bits, which shows that the one asked for did run."""
    folder = write_model(tmp_path, SPEC)
    session = Session.load(
        folder, DEVICE, precision.name, max_tokens=4096, attention_algorithm=algorithm
    )
    random = np.random.default_rng(0)
    rows = [random.integers(0, 50, length) for length in LENGTHS]
    ids, cu_seqlens = np.concatenate(rows), offsets(LENGTHS)
    expected = reference_encoder.encoder(
        SPEC, as_seen(random_tensors(SPEC), precision), ids, cu_seqlens
    )
    found = session.run(rows)
    check_hidden(found.hidden, expected, precision)
    own_positions = np.concatenate([np.arange(length) for length in LENGTHS])
    eager = PackedTokens(ids, cu_seqlens, position_ids=own_positions)
    assert session.run(eager).hidden.tobytes() == found.hidden.tobytes()
    for row, part in zip(rows, found.unpack(), strict=True):
        assert session.run([row]).hidden.tobytes() == part.tobytes()
    online = Session.load(
        folder, DEVICE, precision.name, max_tokens=4096, attention_algorithm="online"
    )
    same = online.run(rows).hidden.tobytes() == found.hidden.tobytes()
    assert same == (algorithm == "online" or (algorithm == "auto" and not has_hopper_kernels()))


def test_explain(algorithm: str, tmp_path: Path) -> None:
    session = Session.load(
        write_model(tmp_path, SPEC), DEVICE, "float16", attention_algorithm=algorithm
    )
    short, long = session.explain([[1, 2, 3]]), session.explain([[1] * 700, [2]])
    assert len(short) == len(long) == 1
    default = "hopper" if has_hopper_kernels() else "online"
    name = default if algorithm == "auto" else algorithm
    for line, tokens in ((short[0], 16), (long[0], 704)):
        assert line.startswith(f"attention: 2 heads of 64, up to {tokens} tokens")
        assert f": {name} (" in line
        assert line.endswith(", 2 x")
    expected = {
        "online": "(online softmax)",
        "short": "(whole score rows on chip up to 384 keys, online softmax)",
        "grouped": "(grouped GEMMs up to 1024 keys)",
        "bytetransformer": "(whole score rows on chip up to 384 keys, "
        "grouped GEMMs up to 1024 keys)",
    }
    assert expected.get(name, "(head tile 64") in long[0]


@pytest.mark.parametrize("name", ["short", "grouped", "bytetransformer"])
def test_what_the_papers_kernels_do_not_take(name: str, tmp_path: Path) -> None:
    wide = tiny_spec(hidden_size=320, num_heads=2, intermediate_size=64)
    with pytest.raises(ValueError, match="heads of at most 128 columns, found 160"):
        Session.load(write_model(tmp_path / "a", wide), DEVICE, "float16", attention_algorithm=name)
    spec = tiny_spec(**SPEC_OPTIONS["disentangled"])
    folder = write_model(tmp_path / "b", spec)
    with pytest.raises(ValueError, match=f"'{name}' computes no disentangled term"):
        Session.load(folder, DEVICE, "float16", attention_algorithm=name)
    for other in ("auto", "online"):
        Session.load(folder, DEVICE, "float16", attention_algorithm=other).run([[1, 2]])


def test_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """PACKHORSE_ATTENTION says what "auto" means; an algorithm asked for by name overrides it."""
    folder = write_model(tmp_path, SPEC)
    monkeypatch.setenv("PACKHORSE_ATTENTION", "grouped")
    assert ": grouped (" in Session.load(folder, DEVICE, "float16").explain([[1]])[0]
    asked = Session.load(folder, DEVICE, "float16", attention_algorithm="online")
    assert ": online (" in asked.explain([[1]])[0]
    monkeypatch.setenv("PACKHORSE_ATTENTION", "fast")
    with pytest.raises(ValueError, match="PACKHORSE_ATTENTION is 'fast', expected one of 'auto'"):
        Session.load(folder, DEVICE, "float16")


def test_plan(tmp_path: Path) -> None:
    """Only the grouped GEMMs keep scores in memory, and so need a larger arena."""
    folder = write_model(tmp_path, SPEC)
    sizes = {
        name: packhorse.plan_memory(folder, DEVICE, "float16", attention_algorithm=name).arena.bytes
        for name in ("auto", "online", "short", "grouped", "bytetransformer")
    }
    assert sizes["auto"] == sizes["online"] == sizes["short"]
    assert sizes["grouped"] == sizes["bytetransformer"] > sizes["online"]
