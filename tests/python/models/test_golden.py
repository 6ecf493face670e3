"""Whole models against transformers: see tests/golden/make_golden.py."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
from packhorse_weights import convert

GOLDEN = Path(__file__).parents[2] / "golden"
FOLDERS = sorted(path.parent for path in GOLDEN.glob("*/golden.npz"))
MAX_ABS_ERROR = 5e-5  # float32; transformers' own distance from float64 is up to 5e-6 here
OUTPUTS = (
    "hidden",
    "embedding",
    "pooled",
    "logits",
    "token_weights",
    "vectors",
    "sparse",
    "predictions",
)
MIN_COSINE = 0.999  # bfloat16

Arrays = Mapping[str, Any]


@pytest.fixture(params=FOLDERS, ids=lambda path: path.name)
def folder(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def read(path: Path) -> Arrays:
    with np.load(path) as golden:
        return dict(golden)


def run(model: Path, golden: Arrays, dtype: str = "float32") -> packhorse.RunResult:
    tokens, sequences = golden["ids"].size, golden["cu_seqlens"].size - 1
    rows = golden.get("prediction_rows")
    session = packhorse.Session.load(
        model,
        dtype=dtype,
        max_tokens=tokens,
        max_sequences=sequences,
        max_predictions=0 if rows is None else rows.size,
        kv_tokens=0,
    )
    batch = packhorse.PackedTokens(golden["ids"], golden["cu_seqlens"], golden["type_ids"])
    return session.run(batch, outputs=[name for name in OUTPUTS if name in golden], rows=rows)


def check_float32(found: packhorse.RunResult, golden: Arrays) -> None:
    for name in OUTPUTS:
        if name in golden:
            error = np.abs(getattr(found, name) - golden[name])
            assert error.shape == golden[name].shape
            assert error.max() <= MAX_ABS_ERROR, f"{name}: {error.max():.2e}"


def check_bfloat16(found: packhorse.RunResult, golden: Arrays) -> None:
    for a, b in zip(found.embedding, golden["embedding"], strict=True):
        cosine = float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))
        assert cosine >= MIN_COSINE


@pytest.mark.arm
def test_float32(folder: Path) -> None:
    golden = read(folder / "golden.npz")
    check_float32(run(folder, golden), golden)


def test_bfloat16(folder: Path) -> None:
    golden = read(folder / "golden.npz")
    check_bfloat16(run(folder, golden, "bfloat16"), golden)


def test_converted_gives_the_same_bits(folder: Path, tmp_path: Path) -> None:
    golden = read(folder / "golden.npz")
    converted = run(convert(folder, tmp_path / "converted"), golden)
    in_place = run(folder, golden)
    for name in OUTPUTS:
        if name in golden:
            np.testing.assert_array_equal(getattr(converted, name), getattr(in_place, name))


def test_float16_weights(tmp_path: Path) -> None:
    """Stored in half precision, computed in float32: the distance is that of the rounding."""
    golden = read(GOLDEN / "bert-gelu" / "golden.npz")
    found = run(convert(GOLDEN / "bert-gelu", tmp_path / "half", dtype="float16"), golden)
    error = float(np.abs(found.hidden - golden["hidden"]).max())
    assert MAX_ABS_ERROR < error < 0.02


def test_without_a_pooler() -> None:
    golden = read(GOLDEN / "bert-no-pooler" / "golden.npz")
    session = packhorse.Session.load(GOLDEN / "bert-no-pooler", max_tokens=512)
    missing = "'pooled' was asked for, but this model has: hidden, embedding$"
    with pytest.raises(ValueError, match=missing):
        session.run((golden["ids"], golden["cu_seqlens"]), outputs=["pooled"])
    assert session.run((golden["ids"], golden["cu_seqlens"])).hidden.shape[1] == 32


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_minilm(minilm: Path, dtype: str) -> None:
    golden = read(GOLDEN / "minilm.npz")
    if dtype == "float32":
        check_float32(run(minilm, golden), golden)
    else:
        check_bfloat16(run(minilm, golden, dtype), golden)


def test_minilm_int8_on_real_text(minilm: Path) -> None:
    """Embeddings of real passages beside float32's; x86-64 without VNNI has a bit less."""
    pytest.importorskip("tokenizers")
    from packhorse.evaluation import read_passages
    from packhorse.evaluation.statistics import cosines

    texts = [passage.text for passage in read_passages(120)]
    exact, int8 = (
        packhorse.TextModel.load(minilm, dtype=dtype, max_length=128).embed(texts)
        for dtype in ("float32", "int8")
    )
    vnni = "vnni" in Path("/proc/cpuinfo").read_text() and "ONEDNN_MAX_CPU_ISA" not in os.environ
    whole = vnni or platform.machine() == "aarch64"
    assert cosines(int8, exact).min() > (0.995 if whole else 0.985)


def test_minilm_tokens(minilm: Path) -> None:
    """The tokenizer that travels with the model gives the ids that the golden outputs are of."""
    tokenizers = pytest.importorskip("tokenizers")
    golden = read(GOLDEN / "minilm.npz")
    tokenizer = tokenizers.Tokenizer.from_file(str(minilm / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(256)
    ids = [encoding.ids for encoding in tokenizer.encode_batch(list(golden["texts"]))]
    batch = packhorse.pack(ids)
    np.testing.assert_array_equal(batch.ids, golden["ids"])
    np.testing.assert_array_equal(batch.cu_seqlens, golden["cu_seqlens"])


def test_table_of_models_is_complete() -> None:
    """docs/developer/notebook/model_errors.md, written by tools/model_table.py, has each model's
    error in float32 on the CPU."""
    page = (GOLDEN.parents[1] / "docs/developer/notebook/model_errors.md").read_text()
    measured = set(re.findall(r"^\|([^|]+)\|\d\.\de-\d\d\|", page, re.MULTILINE))
    assert {path.name for path in FOLDERS} - measured == set()
