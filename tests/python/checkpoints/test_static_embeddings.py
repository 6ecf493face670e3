"""Tables of embeddings with no model above them: what is theirs alone. What they give is compared
with sentence-transformers and model2vec in test_sentence_transformers_folders.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
from command_line import Cli
from folder_cases import TEXTS, make_folder
from packhorse_weights import CheckpointError, convert, inspect_checkpoint, resolve_model
from packhorse_weights.formats.safetensors import read_safetensors, write_safetensors
from packhorse_weights.tensor import Tensor
from tiny_tokenizer import vocabulary

pytest.importorskip("tokenizers")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder("static", tmp_path / "model")


def test_what_a_session_takes(folder: Path) -> None:
    """The table, and a row for each token: no layers, and no buffers for any."""
    session = packhorse.Session.load(folder, max_tokens=1000, max_sequences=10)
    assert session.outputs == {"hidden": (True, 24), "embedding": (False, 24)}
    assert session.memory_plan == packhorse.plan_memory(folder, max_tokens=1000, max_sequences=10)
    (table,) = session.memory_plan.weights.buffers
    assert table.name == "embeddings.word"
    assert table.bytes == len(vocabulary()) * 24 * 4
    names = {buffer.name for buffer in session.memory_plan.arena.buffers}
    assert not {"qkv", "context", "feed_forward_workspace"} & names
    ids = [[3, 1, 3], [], [97]]
    rows = read_safetensors(folder / "model.safetensors")["embedding.weight"].data
    result = session.run(ids, outputs=["hidden", "embedding"])
    np.testing.assert_array_equal(result.hidden, rows[[3, 1, 3, 97]])
    expected = np.stack([rows[[3, 1, 3]].mean(0), np.zeros(24), rows[97]])
    np.testing.assert_allclose(result.embedding, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_dtypes(folder: Path, dtype: str) -> None:
    """The table as bfloat16; int8 is of dense layers, of which there are none."""
    exact = packhorse.TextModel.load(folder).embed(TEXTS)
    found = packhorse.TextModel.load(folder, dtype=dtype).embed(TEXTS)
    if dtype == "int8":
        np.testing.assert_array_equal(found, exact)
        return
    assert 0 < np.abs(found - exact).max() < 0.02


@pytest.mark.parametrize("pooling", ["max", "last"])
def test_other_poolings(folder: Path, pooling: str) -> None:
    model = packhorse.TextModel.load(folder, pooling=pooling)
    (ids,) = model.tokenizer.encode([TEXTS[0]], None).ids
    table = read_safetensors(folder / "model.safetensors")["embedding.weight"].data
    expected = table[ids].max(0) if pooling == "max" else table[ids[-1]]
    np.testing.assert_array_equal(model.embed(TEXTS[0]), expected)


def test_tokens(folder: Path, tmp_path: Path) -> None:
    model = packhorse.TextModel.load(folder)
    ids = model.tokenizer.encode(["the cat é", "\U0001f600"], None).ids
    assert [row.tolist() for row in ids] == [[63, 65, 9], [4]]  # [UNK] is 4; no [CLS], no [SEP]
    assert model.max_length == 8192
    assert model.embed("the " * 10_000).shape == (24,)
    assert model.num_truncated == 1
    other = packhorse.TextModel.load(make_folder("model2vec-alone", tmp_path / "other"))
    ids = other.tokenizer.encode(["the cat \U0001f600 é", "\U0001f600"], None).ids
    assert [row.tolist() for row in ids] == [[63, 65, 9], []]
    assert other.max_length == 512


@pytest.mark.parametrize(
    ("fields", "expected"), [({"max_length": 20}, 20), ({"max_length": None}, 8192)]
)
def test_length_that_model2vec_says(fields: dict[str, Any], expected: int, tmp_path: Path) -> None:
    folder = make_folder("model2vec-alone", tmp_path / "m")
    config = json.loads((folder / "config.json").read_text()) | fields
    (folder / "config.json").write_text(json.dumps(config))
    assert packhorse.TextModel.load(folder).max_length == expected


def test_prompts(folder: Path) -> None:
    config = {"prompts": {"query": "who: "}, "default_prompt_name": "query", "truncate_dim": 7}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(config))
    model = packhorse.TextModel.load(folder)
    found = model.embed(TEXTS)
    assert found.shape == (len(TEXTS), 7)
    texts = [f"who: {text}" for text in TEXTS]
    np.testing.assert_array_equal(found, model.embed(texts, prompt=""))


def test_conversion(folder: Path, tmp_path: Path) -> None:
    half = convert(folder, tmp_path / "half", dtype="float16")
    spec = json.loads((half / "packhorse.json").read_text())
    assert "attention" not in spec
    assert spec["text"] == {"special_tokens": False, "unknown_tokens": True}
    exact, found = (packhorse.TextModel.load(path).embed(TEXTS) for path in (folder, half))
    assert 0 < np.abs(found - exact).max() < 2e-3
    with pytest.raises(CheckpointError, match="quantize: this model has no layers to quantise"):
        convert(folder, tmp_path / "int8", quantize="int8")
    with pytest.raises(CheckpointError, match="reranker: a table of embeddings scores no pairs"):
        inspect_checkpoint(folder, reranker="qwen3")


def test_a_file_of_a_folder(folder: Path, tmp_path: Path) -> None:
    """The file that is asked for, not the one that the folder is loaded from."""
    converted = convert(folder, tmp_path / "converted")
    for place in (folder, converted):
        (name,) = read_safetensors(place / "model.safetensors")
        ones = Tensor(np.ones((len(vocabulary()), 24), np.float32), "float32")
        write_safetensors(place / "other.safetensors", {name: ones})
        np.testing.assert_array_equal(
            packhorse.TextModel.load(place / "other.safetensors").embed("the cat"), np.ones(24)
        )
        with pytest.raises(CheckpointError, match="not a safetensors file"):
            inspect_checkpoint(place / "tokenizer.json")
    shared = make_folder("model2vec-shared", tmp_path / "shared")
    (shared / "model.safetensors").rename(shared / "other.safetensors")
    model = packhorse.TextModel.load(shared / "other.safetensors")
    assert model.tokenizer.encode(["\U0001f600"], None).ids[0].size == 0  # read as model2vec does


def test_embed_command(cli: Cli, folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("typer")
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(text for text in TEXTS if text) + "\n")
    assert cli("embed", folder, lines, "-o", tmp_path / "vectors.npy").status == 0
    model = packhorse.TextModel.load(folder)
    expected = model.embed([text for text in TEXTS if text])
    np.testing.assert_array_equal(np.load(tmp_path / "vectors.npy"), expected)


def change(folder: Path, edit: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = dict(read_safetensors(folder / "model.safetensors"))
    tensors = {name: Tensor(one.data.copy(), one.dtype) for name, one in tensors.items()}
    edit(tensors)
    (folder / "model.safetensors").unlink()
    write_safetensors(folder / "model.safetensors", tensors)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: t.pop("embeddings"), "expected a tensor embedding.weight or embeddings, found"),
        (
            lambda t: t.update(embeddings=Tensor(np.zeros(7, "f4"), "float32")),
            r"embeddings is float32\[7\], expected two dimensions",
        ),
        (
            lambda t: t["mapping"].data.__setitem__(3, 16),
            "mapping is .*, expected the number of one of the 16 rows for each token",
        ),
        (
            lambda t: t["mapping"].data.__setitem__(3, -1),
            "expected the number of one of the 16 rows",
        ),
        (
            lambda t: t.update(weights=Tensor(np.zeros(7, "f4"), "float32")),
            r"weights is float32\[7\], expected shape \[98\]",
        ),
        (
            lambda t: (
                t.pop("weights"),
                t.update(embeddings=Tensor(np.zeros((1, 1 << 20), "f4"), "float32")),
                t.update(mapping=Tensor(np.zeros(1 << 20, "i4"), "int32")),
            ),
            r"a table of 1048576 rows and 1048576 columns, more than 2147483648 numbers",
        ),
        (
            lambda t: t.update(more=Tensor(np.zeros(7, "f4"), "float32")),
            "also holds more",
        ),
    ],
)
def test_refused(edit: Any, message: str, tmp_path: Path) -> None:
    folder = make_folder("model2vec-shared", tmp_path / "m")
    change(folder, edit)
    with pytest.raises(CheckpointError, match=message):
        resolve_model(folder)


def test_tokens_beyond_the_table(folder: Path) -> None:
    """A table is not compared with the tokenizer when it is loaded, as in sentence-transformers."""
    rows = read_safetensors(folder / "model.safetensors")["embedding.weight"].data[:63]
    change(folder, lambda t: t.update({"embedding.weight": Tensor(rows.copy(), "float32")}))
    model = packhorse.TextModel.load(folder)
    with pytest.raises(ValueError, match="63"):
        model.embed("the cat")
    assert model.embed(".").shape == (24,)
