"""Heads of checkpoints: those of sentence-transformers, ColBERT, BGE-M3; tied decoders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
from checkpoints import GOLDEN, Edit, edited
from packhorse_weights import (
    CheckpointError,
    Tensor,
    convert,
    inspect_checkpoint,
    resolve_model,
)
from packhorse_weights.formats.safetensors import write_safetensors


def copied(name: str, target: Path, file: str = "", edit: Edit | None = None) -> Path:
    """A golden folder, one of its JSON files changed."""
    folder = Path(shutil.copytree(GOLDEN / name, target / name))
    if edit is not None:
        fields = json.loads((folder / file).read_text())
        edit(fields)
        (folder / file).write_text(json.dumps(fields))
    return folder


def heads_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = resolve_model(folder).spec.get("heads", {})
    return found


def test_specs() -> None:
    dense = [{"size": 21, "bias": True, "activation": "tanh"}, {"size": 13, "bias": False}]
    assert resolve_model(GOLDEN / "bert-dense").spec["embedding"] == {
        "pooling": "mean",
        "dense": dense,
        "normalize": True,
    }
    assert resolve_model(GOLDEN / "modernbert-residual").spec["embedding"] == {
        "pooling": ["weighted_mean", "max", "cls"],
        "dense": [
            {"size": 120, "bias": True, "residual": True, "activation": "tanh"},
            {"size": 21, "bias": False, "residual": True},
            {"size": 21, "bias": True, "residual": True},
        ],
        "normalize": True,
    }
    vectors = {"size": 20, "bias": False, "normalize": True}
    for name in ("bert-colbert", "modernbert-colbert"):
        assert heads_of(GOLDEN / name) == {"vectors": vectors}
    assert heads_of(GOLDEN / "bge-m3") == {
        "token_weights": True,
        "vectors": {"size": 32, "bias": True, "normalize": True},
    }
    assert heads_of(GOLDEN / "bert-splade") == {"masked_lm": {"activation": "gelu", "sparse": True}}
    assert heads_of(GOLDEN / "distilbert-splade-logs")["masked_lm"] == {
        "activation": "gelu",
        "sparse": True,
        "sparse_pooling": "sum",
        "sparse_logs": 2,
    }
    assert heads_of(GOLDEN / "modernbert-own-decoder")["masked_lm"] == {
        "activation": "gelu",
        "dense_bias": True,
        "decoder_bias": False,
    }
    assert heads_of(GOLDEN / "qwen3-reranker")["classifier"]["input"] == "last"


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("2_Dense/config.json", {"use_residual": True}, "expected residual.weight of two dim"),
        ("2_Dense/config.json", {"activation_function": "torch.nn.X"}, "'torch.nn.X' is not supp"),
        ("2_Dense/config.json", {"module_input_name": "token_embeddings"}, "module_input_name"),
        ("3_Dense/config.json", {"module_output_name": "other"}, "module_output_name = 'other'"),
    ],
)
def test_refused_layers(file: str, change: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = copied("bert-dense", tmp_path, file, lambda fields: fields.update(change))
    with pytest.raises(CheckpointError, match=message):
        resolve_model(folder)


def test_layers_that_are_not_there_or_not_alone(tmp_path: Path) -> None:
    folder = copied("bert-dense", tmp_path)
    file = folder / "2_Dense" / "model.safetensors"
    tensor = Tensor(np.zeros((21, 33), np.float32), "float32")
    for tensors, message in (
        ({"linear.weight": tensor, "linear.extra": tensor}, "also holds linear.extra"),
        ({"weights": tensor}, "expected linear.weight of two dimensions, beside: weights"),
        ({"linear.weight": tensor}, r"2_Dense/linear.weight has shape \[21, 33\].*\[21, 32\]"),
    ):
        write_safetensors(file, tensors)
        with pytest.raises(CheckpointError, match=message):
            resolve_model(folder)
    file.unlink()
    with pytest.raises(CheckpointError, match=r"no model.safetensors or pytorch_model.bin"):
        resolve_model(folder)


def test_length_of_vectors(tmp_path: Path) -> None:
    """PyLate's have length 1 anyway, others where a module makes them so."""
    dense, mask = (
        "sentence_transformers.base.modules.Dense",
        "sentence_transformers.MultiVectorMask",
    )
    for i, (types, normalize) in enumerate(
        (
            (["pylate.models.Dense.Dense"], True),
            ([dense], False),
            ([dense, mask], False),
            ([dense, "sentence_transformers.Normalize", mask], True),
        )
    ):
        folder = copied("modernbert-colbert", tmp_path / str(i))
        modules = json.loads((folder / "modules.json").read_text())[:1]
        modules += [{"type": kind, "path": "1_Dense"} for kind in types[:1]]
        modules += [{"type": kind, "path": kind} for kind in types[1:]]
        (folder / "modules.json").write_text(json.dumps(modules))
        assert heads_of(folder)["vectors"]["normalize"] is normalize
    (folder / "sentence_transformers.Normalize").mkdir()
    config = {"module_input_name": "sentence_embedding"}
    (folder / "sentence_transformers.Normalize" / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="module_input_name = 'sentence_embedding' is not su"):
        resolve_model(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pooling_strategy": "mean"}, "pooling_strategy 'mean' is not supported"),
        ({"activation_function": "gelu"}, "activation_function 'gelu'"),
    ],
)
def test_refused_sparse_vectors(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    file = "1_SpladePooling/config.json"
    folder = copied("bert-splade", tmp_path, file, lambda fields: fields.update(change))
    with pytest.raises(CheckpointError, match=message):
        resolve_model(folder)


def test_sparse_vectors_need_a_masked_language_model(tmp_path: Path) -> None:
    def edit(config: dict[str, Any]) -> None:
        config["architectures"] = ["BertModel"]

    folder = copied("bert-splade", tmp_path, "config.json", edit)
    with pytest.raises(CheckpointError, match="no head of a masked language model"):
        resolve_model(folder)


def test_layers_of_token_vectors(tmp_path: Path) -> None:
    assert heads_of(GOLDEN / "bert-residual-vectors")["vectors"] == {
        "dense": [
            {"size": 40, "bias": True, "residual": True, "activation": "tanh"},
            {"size": 21, "bias": False, "residual": True},
        ],
        "size": 21,
        "bias": True,
        "residual": True,
        "normalize": True,
    }

    def edit(config: dict[str, Any]) -> None:
        del config["activation_function"]  # tanh, then

    folder = copied("modernbert-colbert", tmp_path, "1_Dense/config.json", edit)
    assert heads_of(folder)["vectors"]["activation"] == "tanh"


def test_a_linear_layer_alone_makes_no_vectors(tmp_path: Path) -> None:
    """Any checkpoint may have a head of that name."""

    def edit(config: dict[str, Any]) -> None:
        config["architectures"] = ["BertModel"]

    assert heads_of(copied("bert-colbert", tmp_path, "config.json", edit)) == {}


def test_tied_decoders(tmp_path: Path) -> None:
    """The word table, unless the file has a decoder or the config says that they are apart."""
    word = "bert.embeddings.word_embeddings.weight"
    names = resolve_model(GOLDEN / "bert-predictions").names
    assert names["masked_lm.decoder.weight"] == word
    assert names["masked_lm.decoder.bias"] == "cls.predictions.bias"
    names = resolve_model(GOLDEN / "bert-own-decoder").names
    assert names["masked_lm.decoder.weight"] == "cls.predictions.decoder.weight"

    def tie(config: dict[str, Any]) -> None:
        config["tie_word_embeddings"] = True

    folder = edited(GOLDEN / "bert-own-decoder", tmp_path / "tied", tie)
    found = resolve_model(folder).names["masked_lm.decoder.weight"]
    assert found == "cls.predictions.decoder.weight"

    def untie(config: dict[str, Any]) -> None:
        config["tie_word_embeddings"] = False

    folder = edited(GOLDEN / "bert-predictions", tmp_path / "untied", untie)
    with pytest.raises(CheckpointError, match="missing: cls.predictions.decoder.weight"):
        resolve_model(folder)


def test_models_for_pre_training_predict(tmp_path: Path) -> None:
    def edit(config: dict[str, Any]) -> None:
        config["architectures"] = ["BertForPreTraining"]

    folder = edited(GOLDEN / "bert-predictions", tmp_path / "m", edit)
    assert heads_of(folder) == heads_of(GOLDEN / "bert-predictions")
    assert "masked_lm" not in heads_of(GOLDEN / "bert-old-bin")  # it has no such tensors


def test_layers_of_other_files_are_converted(tmp_path: Path) -> None:
    golden = np.load(GOLDEN / "bge-m3" / "golden.npz")
    batch = packhorse.PackedTokens(golden["ids"], golden["cu_seqlens"])
    names = ["embedding", "token_weights", "vectors"]
    results = [
        packhorse.Session.load(folder, max_tokens=100).run(batch, names)
        for folder in (GOLDEN / "bge-m3", convert(GOLDEN / "bge-m3", tmp_path / "m"))
    ]
    for name in names:
        np.testing.assert_array_equal(getattr(results[0], name), getattr(results[1], name))
    assert results[0].token_weights.min() == 0 < results[0].token_weights.max()


@pytest.mark.parametrize("name", ["bert-colbert", "bert-sequence", "modernbert-reranker"])
@pytest.mark.parametrize("shape", [(), (1,), (2**40, 0)])
def test_layers_of_other_shapes(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    """The tensors that say how many outputs there are."""

    def edit(tensors: dict[str, Any]) -> None:
        layer = "linear.weight" if name == "bert-colbert" else "classifier.weight"
        assert layer in tensors
        tensors[layer] = Tensor(np.zeros(shape, np.float32), "float32")

    with pytest.raises(CheckpointError):
        inspect_checkpoint(edited(GOLDEN / name, tmp_path / "m", tensors=edit))


def test_number_of_labels(tmp_path: Path) -> None:
    def edit(config: dict[str, Any]) -> None:
        config.pop("id2label", None)
        config["num_labels"] = 10**6

    with pytest.raises(CheckpointError, match="num_labels is 1000000, but the classifier has 3 r"):
        inspect_checkpoint(edited(GOLDEN / "bert-sequence", tmp_path / "m", edit))
