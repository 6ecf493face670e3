"""Checkpoints: names of tensors, configs, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import BERT, GOLDEN, add_prefix, edited
from packhorse_weights import CheckpointError, Tensor, resolve_model
from packhorse_weights.spec import blocks_of, stack_of, stem_of


@pytest.mark.parametrize("prefix", ["", "bert.", "roberta.", "model.", "module.bert."])
def test_prefixes(prefix: str, tmp_path: Path) -> None:
    def tensors(weights: dict[str, Any]) -> None:
        add_prefix(prefix)(weights)
        weights["cls.predictions.bias"] = Tensor(np.zeros(100, np.float32), "float32")
        weights["classifier.weight"] = Tensor(np.zeros((2, 32), np.float32), "float32")
        weights["lm_head.bias"] = Tensor(np.zeros(100, np.float32), "float32")
        weights[prefix + "embeddings.position_ids"] = Tensor(np.arange(120)[None], "int64")

    folder = edited(BERT, tmp_path / "m", tensors=tensors)
    names = resolve_model(folder).names
    assert names["embeddings.word"] == prefix + "embeddings.word_embeddings.weight"
    assert names["pooler.bias"] == prefix + "pooler.dense.bias"
    assert names["layers.1.ffn.norm.bias"] == prefix + "encoder.layer.1.output.LayerNorm.bias"


def test_old_norm_names() -> None:
    names = resolve_model(GOLDEN / "bert-old-bin").names
    assert names["embeddings.norm.weight"] == "bert.embeddings.LayerNorm.gamma"
    assert names["layers.0.attention.norm.bias"] == (
        "bert.encoder.layer.0.attention.output.LayerNorm.beta"
    )


def test_missing_tensors_are_listed(tmp_path: Path) -> None:
    def tensors(weights: dict[str, Any]) -> None:
        for name in list(weights):
            if "layer.1." in name:
                del weights[name]

    folder = edited(BERT, tmp_path / "m", tensors=tensors)
    with pytest.raises(CheckpointError) as error:
        resolve_model(folder)
    message = str(error.value)
    assert "16 of 39 tensors are missing: encoder.layer.1.attention.self.query.weight" in message
    assert "and 8 more; there are: embeddings.LayerNorm.bias" in message


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        (
            "embeddings.word_embeddings.weight",
            (99, 32),
            r"\[99, 32\], config.json says \[100, 32\]",
        ),
        ("encoder.layer.0.attention.self.distance_embedding.weight", (9, 8), "distance_embedding"),
        ("encoder.layer.0.crossattention.self.query.weight", (32, 32), "crossattention"),
        ("encoder.layer.2.output.dense.bias", (32,), r"encoder\.layer\.2"),
        ("bert.embeddings.word_embeddings.weight", (100, 32), "several models"),
    ],
)
def test_other_tensors(name: str, shape: tuple[int, ...], message: str, tmp_path: Path) -> None:
    def tensors(weights: dict[str, Any]) -> None:
        weights[name] = Tensor(np.zeros(shape, np.float32), "float32")

    with pytest.raises(CheckpointError, match=message):
        resolve_model(edited(BERT, tmp_path / "m", tensors=tensors))


def test_no_model_in_the_file(tmp_path: Path) -> None:
    folder = edited(BERT, tmp_path / "m", tensors=add_prefix("x"))
    with pytest.raises(CheckpointError, match=r"no tensor named embeddings\.word_embeddings"):
        resolve_model(folder)


# --- configs


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("gelu", "gelu"),
        ("gelu_python", "gelu"),
        ("gelu_new", "gelu_tanh"),
        ("gelu_fast", "gelu_tanh"),
        ("gelu_accurate", "gelu_tanh"),
        ("gelu_pytorch_tanh", "gelu_tanh"),
        ("gelu_python_tanh", "gelu_tanh"),
        ("relu", "relu"),
        ("silu", "silu"),
        ("swish", "silu"),
        ("tanh", "tanh"),
    ],
)
def test_activations(theirs: str, ours: str, tmp_path: Path) -> None:
    folder = edited(BERT, tmp_path / "m", lambda config: config.update(hidden_act=theirs))
    for _, feed_forward in blocks_of(resolve_model(folder).spec):
        assert feed_forward == {"kind": "feed_forward", "size": 64, "activation": ours}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "quick_gelu"}, "hidden_act 'quick_gelu' is not supported.*gelu_new"),
        ({"hidden_act": None}, "hidden_act None"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type = 'relative_key'"),
        ({"position_embedding_type": "alibi"}, "feed_forward_type"),
        ({"is_decoder": True}, "is_decoder = True"),
        ({"add_cross_attention": True}, "add_cross_attention"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"num_attention_heads": 5}, "hidden_size 32 is not a multiple of num_attention_heads 5"),
        ({"hidden_size": "32"}, "hidden_size.*whole number.*'32'"),
        ({"hidden_size": True}, "hidden_size"),
        ({"vocab_size": None}, "vocab_size.*found nothing"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"layer_norm_eps": -1}, "layer_norm_eps"),
        ({"layer_norm_eps": "1e-12"}, "layer_norm_eps"),
        ({"model_type": "gpt3"}, "'gpt3'.*bert, roberta, xlm-roberta, camembert"),
        ({"model_type": None, "architectures": ["BertGenerationEncoder"]}, "unknown architecture"),
        ({"model_type": None, "architectures": None}, "unknown architecture"),
        ({"model_type": ["bert"]}, "unknown architecture"),
    ],
)
def test_refused_configs(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = edited(BERT, tmp_path / "m", lambda config: config.update(changes))
    with pytest.raises(CheckpointError, match=message):
        resolve_model(folder)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("BertForMaskedLM", "bert"),
        ("BertLMHeadModel", "bert"),
        ("RobertaModel", "roberta"),
        ("XLMRobertaForTokenClassification", "xlm-roberta"),
        ("CamembertModel", "camembert"),
    ],
)
def test_family_by_class_name(name: str, family: str, tmp_path: Path) -> None:
    def config(fields: dict[str, Any]) -> None:
        del fields["model_type"]
        fields["architectures"] = [name]

    assert resolve_model(edited(BERT, tmp_path / "m", config)).spec["family"] == family


def test_defaults_of_old_configs(tmp_path: Path) -> None:
    def config(fields: dict[str, Any]) -> None:
        for name in ("layer_norm_eps", "pad_token_id", "position_embedding_type"):
            fields.pop(name, None)

    spec = resolve_model(edited(GOLDEN / "roberta", tmp_path / "m", config)).spec
    assert stack_of(spec)["norm"]["eps"] == 1e-12
    assert stem_of(spec)["positions"]["offset"] == 2


def test_folders_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        resolve_model(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        resolve_model(tmp_path)
    (tmp_path / "config.json").write_bytes((BERT / "config.json").read_bytes())
    with pytest.raises(CheckpointError, match=r"no weights; expected.*found: config\.json"):
        resolve_model(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not valid JSON"):
        resolve_model(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "modules.json"])
def test_git_lfs_pointers(name: str, tmp_path: Path) -> None:
    folder = edited(BERT, tmp_path / "m")
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 90868376\n"
    (folder / name).write_text(pointer)
    with pytest.raises(
        CheckpointError, match=rf"^\S+{name}: a Git LFS pointer.*git -C '.*m' lfs pull"
    ):
        resolve_model(folder)


def test_one_weight_file_of_a_folder(tmp_path: Path) -> None:
    folder = edited(BERT, tmp_path / "m")
    (folder / "model.safetensors").rename(folder / "model.fp32.safetensors")
    assert resolve_model(folder / "model.fp32.safetensors").spec["family"] == "bert"
