"""Folders as sentence-transformers and model2vec write them, against what these make of texts."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
from checkpoints import BERT, GOLDEN, edited
from folder_cases import (
    MODEL2VEC,
    PLAIN,
    SENTENCE_TRANSFORMERS,
    TEXTS,
    make_folder,
)
from packhorse_weights import CheckpointError, convert, inspect_checkpoint, resolve_model
from tiny_tokenizer import with_tokenizer

pytest.importorskip("tokenizers")

CASES = (*PLAIN, *SENTENCE_TRANSFORMERS, *MODEL2VEC)
STATIC = tuple(name for name in CASES if name.startswith(("static", "model2vec")))
MODULES = "sentence_transformers.models."


@pytest.fixture(scope="module")
def golden() -> Any:
    return np.load(GOLDEN / "sentence_transformers.npz")


@pytest.mark.parametrize("name", CASES)
def test_as_they_embed(name: str, golden: Any, tmp_path: Path) -> None:
    folder = make_folder(name, tmp_path / "model")
    # A causal language model whose files say nothing of embeddings generates otherwise.
    kv_tokens = 0 if name == "qwen3-answers" else None
    model = packhorse.TextModel.load(folder, kv_tokens=kv_tokens)
    found = model.embed(TEXTS)
    expected = golden[name].astype(np.float32)
    if name == "static-subfolder":
        expected[1] = 0  # a text without tokens, whatever dense layers make of that
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=5e-6)
    # The other way around, so in another batch; one by one; and converted.
    np.testing.assert_array_equal(model.embed(TEXTS[::-1]), found[::-1])
    for text, row in zip(TEXTS, found, strict=True):
        np.testing.assert_array_equal(model.embed(text), row)
    converted = convert(folder, tmp_path / "converted")
    again = packhorse.TextModel.load(converted, kv_tokens=kv_tokens)
    np.testing.assert_array_equal(again.embed(TEXTS), found)


@pytest.mark.parametrize(
    ("name", "pooling", "reason"),
    [
        ("bert-odd", "mean", "no modules.json: the mean, as sentence-transformers takes it"),
        ("qwen3-answers", "last", "no modules.json: the last token, as sentence-transformers"),
        ("bert-gelu", "mean", "modules.json says so"),
        ("bert-splade", "mean", "modules.json has no Pooling: the mean"),
    ],
)
def test_why_it_is_pooled_so(name: str, pooling: str, reason: str, tmp_path: Path) -> None:
    checkpoint = inspect_checkpoint(GOLDEN / name)
    assert checkpoint.spec["embedding"]["pooling"] == pooling
    assert checkpoint.pooling_reason.startswith(reason)
    converted = convert(GOLDEN / name, tmp_path / "converted")
    assert inspect_checkpoint(converted).pooling_reason == "packhorse.json says so"


def test_bidirectional_causal_class(tmp_path: Path) -> None:
    folder = edited(GOLDEN / "qwen3-answers", tmp_path / "m", lambda c: c.update(is_causal=False))
    assert inspect_checkpoint(folder).spec["embedding"]["pooling"] == "mean"


def pooled(hidden: np.ndarray, name: str) -> np.ndarray:
    rows = hidden.astype(np.float64)
    return {
        "cls": lambda: rows[0],
        "mean": lambda: rows.mean(0),
        "max": lambda: rows.max(0),
        "last": lambda: rows[-1],
        "mean_sqrt": lambda: rows.sum(0) / len(rows) ** 0.5,
        "weighted_mean": lambda: np.average(rows, axis=0, weights=np.arange(1, len(rows) + 1)),
    }[name]()


@pytest.mark.parametrize("normalize", [None, True, False])
@pytest.mark.parametrize(
    "pooling", ["cls", "mean", "max", "last", "mean_sqrt", "weighted_mean", ("max", "cls"), None]
)
def test_asked_for(pooling: Any, normalize: bool | None, tmp_path: Path) -> None:
    """Whatever the files say: the mean, normalised."""
    golden = np.load(GOLDEN / "bert-gelu" / "golden.npz")
    options = {"pooling": pooling, "normalize": normalize}
    session = packhorse.Session.load(GOLDEN / "bert-gelu", **options)
    batch = packhorse.PackedTokens(golden["ids"], golden["cu_seqlens"], golden["type_ids"])
    found = session.run(batch, outputs=["embedding"]).embedding
    names = ("mean",) if pooling is None else (pooling,) if isinstance(pooling, str) else pooling
    bounds = golden["cu_seqlens"]
    rows = [golden["hidden"][a:b] for a, b in pairwise(bounds)]
    expected = np.stack([np.concatenate([pooled(one, name) for name in names]) for one in rows])
    if normalize in (None, True):
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=5e-5)

    plan = packhorse.plan_memory(GOLDEN / "bert-gelu", **options)
    assert plan == session.memory_plan
    written = convert(GOLDEN / "bert-gelu", tmp_path / "written", **options)
    plain = convert(GOLDEN / "bert-gelu", tmp_path / "plain")
    for again in (
        packhorse.Session.load(written),
        packhorse.Session.load(plain, **options),
    ):
        np.testing.assert_array_equal(again.run(batch, outputs=["embedding"]).embedding, found)
    assert inspect_checkpoint(plain, **options).pooling_reason == (
        "packhorse.json says so" if pooling is None else "asked for"
    )


def test_asked_for_with_texts(tmp_path: Path) -> None:
    folder = with_tokenizer(GOLDEN / "bert-odd", tmp_path / "m")
    model = packhorse.TextModel.load(folder, pooling="cls", normalize=True)
    session = packhorse.Session.load(folder, pooling="cls", normalize=True)
    tokens = model.tokenizer.encode(TEXTS, 40)
    found = session.run_many(tokens.ids, ["embedding"], type_ids=tokens.type_ids).embedding
    np.testing.assert_array_equal(model.embed(TEXTS), found)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("bert-gelu", {"pooling": "first"}, "pooling 'first' is not one of cls, mean, max, last, "),
        ("bert-gelu", {"pooling": []}, r"pooling \[\] is not one of .* a list of 1 to 16 of them"),
        ("bert-gelu", {"pooling": ["mean", 7]}, r"pooling \['mean', 7\] is not one of"),
        ("bert-gelu", {"pooling": 7}, "pooling 7 is not one of"),
        ("bert-gelu", {"normalize": "yes"}, "normalize is 'yes', expected True, False or None"),
        ("bert-splade", {"pooling": "cls"}, "pooling: this model gives sparse vectors, not pooled"),
        ("bert-colbert", {"normalize": True}, "normalize: this model gives a vector for each tok"),
        (
            "bert-dense",
            {"pooling": ["cls", "mean"]},
            r"\['cls', 'mean'\] gives 2 times .* size, but the dense layers after 'mean' take 1 ti",
        ),
        (
            "llama-answers",
            {"pooling": "mean", "reranker": {"text": "{query}{document}", "yes": 3, "no": 4}},
            "pooling: this model is a generative reranker, which gives scores, not pooled",
        ),
    ],
)
def test_asked_for_in_vain(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        inspect_checkpoint(GOLDEN / name, **options)
    with pytest.raises(ValueError, match=message):
        packhorse.Session.load(GOLDEN / name, **options)


def test_asked_for_of_models_that_also_pool() -> None:
    for name in ("bge-m3", "bert-dense", "bert-sequence"):
        spec = inspect_checkpoint(GOLDEN / name, pooling="last", normalize=True).spec
        assert spec["embedding"]["pooling"] == "last"
        assert spec["embedding"]["normalize"] is True
    with pytest.raises(ValueError, match="go with a folder or a name: a spec says all"):
        packhorse.plan_memory(resolve_model(BERT).spec, pooling="mean")


def test_dimensions_that_the_files_keep(tmp_path: Path) -> None:
    """sentence-transformers cuts what has length 1, and leaves it as it is."""
    folder = make_folder("truncated", tmp_path / "m")
    model = packhorse.TextModel.load(folder)
    whole = model.embed(TEXTS, truncate_dim=32)
    np.testing.assert_array_equal(model.embed(TEXTS), whole[:, :12])
    np.testing.assert_array_equal(model.embed(TEXTS[0]), whole[0, :12])
    np.testing.assert_array_equal(model.embed(TEXTS, truncate_dim=5), whole[:, :5])
    assert model.embed([]).shape == (0, 12)
    assert model.embed(TEXTS, dtype="ubinary").shape == (len(TEXTS), 2)
    lengths = np.linalg.norm(model.embed(TEXTS, normalize=True), axis=1)
    np.testing.assert_allclose(lengths, 1, rtol=1e-6)
    assert np.linalg.norm(model.embed(TEXTS), axis=1).max() < 0.99
    assert model.session.embedding_size == 32
    path = folder / "config_sentence_transformers.json"
    for value, size in ((None, 32), (1000, 32), (32, 32)):  # more than there are is no error there
        path.write_text(json.dumps({"truncate_dim": value}))
        assert packhorse.TextModel.load(folder).embed(TEXTS).shape[1] == size
    for bad in (0, -1, "12", 1.5):
        path.write_text(json.dumps({"truncate_dim": bad}))
        with pytest.raises(CheckpointError, match="truncate_dim: expected a whole number from 1"):
            packhorse.TextModel.load(folder)


def with_modules(folder: Path, kinds: tuple[str, ...]) -> Path:
    """A copy of a model with these modules: whole names, or those of sentence-transformers."""
    edited(BERT, folder)
    rows = []
    for i, kind in enumerate(kinds):
        path = folder / f"{i}_{kind}" if i else folder
        path.mkdir(exist_ok=True)
        if i:
            (path / "config.json").write_text("{}")
        name = kind if "." in kind else MODULES + kind
        rows.append({"idx": i, "name": str(i), "path": path.name if i else "", "type": name})
    (folder / "modules.json").write_text(json.dumps(rows))
    return folder


@pytest.mark.parametrize(
    "kinds",
    [
        ("Transformer", "Dropout", "Pooling", "Dropout"),
        ("Transformer", "Pooling", "Dropout", "Normalize", "Dropout"),
        ("sentence_transformers.base.modules.transformer.Transformer", "Pooling"),
    ],
)
def test_modules_without_an_effect(kinds: tuple[str, ...], tmp_path: Path) -> None:
    spec = resolve_model(with_modules(tmp_path / "m", kinds)).spec
    assert spec["embedding"] == {"pooling": "mean", "normalize": "Normalize" in kinds}


def test_a_module_without_an_effect_in_front(tmp_path: Path) -> None:
    folder = with_modules(tmp_path / "m", ("Dropout", "Transformer", "Pooling"))
    (folder / "config.json").rename(folder / "1_Transformer" / "config.json")
    (folder / "model.safetensors").rename(folder / "1_Transformer" / "model.safetensors")
    assert inspect_checkpoint(folder).folder == folder / "1_Transformer"
    table = make_folder("static", tmp_path / "table")
    modules = json.loads((table / "modules.json").read_text())
    modules.insert(0, {"path": "0_Dropout", "type": f"{MODULES}Dropout"})
    (table / "modules.json").write_text(json.dumps(modules))
    (table / "0_Dropout").mkdir()
    assert packhorse.TextModel.load(table).embed("the cat").shape == (24,)


def test_older_flags_of_pooling(golden: Any, tmp_path: Path) -> None:
    """Whatever is true in Python is, as in sentence-transformers."""
    folder = make_folder("flags", tmp_path / "model")
    assert inspect_checkpoint(folder).spec["embedding"]["pooling"] == ["cls", "max"]
    found = packhorse.TextModel.load(folder).embed(TEXTS)
    np.testing.assert_allclose(found, golden["flags"], rtol=0, atol=5e-6)


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (("WordEmbeddings", "Pooling"), "it has vectors of words, by a tokenizer of its own"),
        (("BoW",), "it counts words"),
        (("Transformer", "WordWeights", "Pooling"), "it weighs words by a table"),
        (("Transformer", "CNN", "Pooling"), "it runs convolutions over a text's tokens"),
        (("Transformer", "LSTM", "Pooling"), "it runs a recurrent network"),
        (("Transformer", "Pooling", "LayerNorm"), "it normalises embeddings by learned weights"),
        (("Transformer", "WeightedLayerPooling", "Pooling"), "hidden states of several layers"),
        (("CLIPModel",), "it embeds images and texts"),
        (("SparseStaticEmbedding",), "it looks up a weight for each of a text's tokens"),
        (("IDF",), "it looks up a weight"),
        (("Transformer", "Pooling", "SparseAutoEncoder"), "it makes sparse vectors of dense ones"),
        (("Transformer", "Pooling", "CSRSparsity"), "it makes sparse vectors of dense ones"),
        (("Transformer", "Dense", "TokenPooling"), "it merges the vectors of a text's tokens"),
        (("Router",), "it sends each text to one of several models"),
        (("Asym",), "it sends each text to one of several models"),
        (("Transformer", "SomethingNew"), "supported: Transformer, MLMTransformer, StaticEmbedd"),
    ],
)
def test_modules_refused_by_name(kinds: tuple[str, ...], message: str, tmp_path: Path) -> None:
    folder = with_modules(tmp_path / "m", kinds)
    if kinds[0] != "Transformer":  # then there is no model in the folder
        (folder / "config.json").unlink()
        (folder / "model.safetensors").unlink()
    refused = {"WordEmbeddings", "BoW", "CLIPModel"} & {*kinds} or {*kinds} - {
        "Transformer", "Pooling", "Dense",
    }  # fmt: skip
    with pytest.raises(CheckpointError, match=message) as error:
        resolve_model(folder)
    assert f"the module {refused.pop()!r} is not supported" in str(error.value)
    assert "Normalize" in str(error.value)  # among the supported ones


def test_routes_are_named(tmp_path: Path) -> None:
    folder = with_modules(tmp_path / "m", ("Router",))
    structure = {
        "query": ["query_0_SparseStaticEmbedding"],
        "document": ["document_0_MLMTransformer", "document_1_SpladePooling"],
    }
    config = {"types": {}, "structure": structure, "parameters": {"default_route": "document"}}
    (folder / "router_config.json").write_text(json.dumps(config))
    expected = (
        r"\(query: query_0_SparseStaticEmbedding; document: document_0_MLMTransformer, "
        r"document_1_SpladePooling; a route saved as a model of its own may be\)"
    )
    with pytest.raises(CheckpointError, match=expected):
        resolve_model(folder)
    for hostile in (7, {"query": 7}, ["query"]):
        (folder / "router_config.json").write_text(json.dumps({"structure": hostile}))
        with pytest.raises(CheckpointError, match="one of several models; supported:"):
            resolve_model(folder)


def test_code_of_the_folders_own_is_refused(tmp_path: Path) -> None:
    for i, kinds in enumerate(
        (("own.Transformer", "Pooling"), ("Transformer", "Pooling", "own.Dropout"))
    ):
        folder = with_modules(tmp_path / str(i), kinds)
        message = r"the module 'own\.\w+' is code of the folder's own, which is never run"
        with pytest.raises(CheckpointError, match=message):
            resolve_model(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"embedding": 7}, "spec: embedding: expected an object, found 7"),
        ({"heads": [7]}, "spec: heads: expected an object"),
        ({"heads": {"masked_lm": {"sparse": 7}}}, "masked_lm: sparse: expected true or false"),
    ],
)
def test_asked_for_of_a_hostile_spec(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = convert(BERT, tmp_path / "m")
    spec = json.loads((folder / "packhorse.json").read_text()) | change
    (folder / "packhorse.json").write_text(json.dumps(spec))
    with pytest.raises(CheckpointError, match=message):
        inspect_checkpoint(folder, pooling="cls")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"transformer_task": "feature-extraction", "unpad_inputs": False}, None),
        ({"transformer_task": "any-to-any"}, "transformer_task 'any-to-any' is not supported"),
        ({"module_output_name": "sentence_embedding"}, "module_output_name = 'sentence_embedding'"),
    ],
)
def test_settings_of_the_transformer(
    settings: dict[str, Any], message: str | None, tmp_path: Path
) -> None:
    folder = edited(BERT, tmp_path / "m")
    (folder / "sentence_bert_config.json").write_text(json.dumps(settings))
    if message is None:
        resolve_model(folder)
        return
    with pytest.raises(CheckpointError, match=message):
        resolve_model(folder)
