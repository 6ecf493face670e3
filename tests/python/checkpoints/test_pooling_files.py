"""Pooling of a sequence into one vector, as the files of sentence-transformers say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from checkpoints import BERT, edited
from packhorse_weights import CheckpointError, resolve_model


def with_pooling(
    folder: Path, config: dict[str, Any], kinds: tuple[str, ...] = ("Transformer", "Pooling")
) -> Path:
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    modules = [
        {"type": f"sentence_transformers.models.{kind}", "path": paths.get(kind, kind)}
        for kind in kinds
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode_lasttoken": True, "include_prompt": True}, "last"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "mean_sqrt"),
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": ["mean"]}, "mean"),
        ({"pooling_mode_weightedmean_tokens": True}, "weighted_mean"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, ["cls", "mean"]),
        ({"pooling_mode": ["mean", "max", "lasttoken"]}, ["mean", "max", "last"]),
        ({"pooling_mode_mean_tokens": False}, "mean"),
        ({}, "mean"),
    ],
)
def test_pooling(config: dict[str, Any], pooling: Any, tmp_path: Path) -> None:
    folder = with_pooling(edited(BERT, tmp_path / "m"), config)
    assert resolve_model(folder).spec["embedding"] == {"pooling": pooling, "normalize": False}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"pooling_mode": "attention"}, "attention"),
        ({"pooling_mode": ["mean", 7]}, "pooling mode 7 is not supported; supported: cls, mean"),
        ({"pooling_mode": []}, r"pooling_mode \[\]: expected a mode or a list"),
        ({"pooling_mode": "mean", "include_prompt": 7}, "include_prompt: expected true or false"),
    ],
)
def test_refused_pooling(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = with_pooling(edited(BERT, tmp_path / "m"), config)
    with pytest.raises(CheckpointError, match=message):
        resolve_model(folder)


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (("Transformer", "Pooling", "LSTM", "Normalize"), "'LSTM' is not supported"),
        (("WordEmbeddings", "Pooling"), "'WordEmbeddings'"),
        (("Transformer", "Pooling", "Normalize", "Dense"), "in this order"),
        (("Transformer", "Dense", "Pooling"), "in this order"),
        (("Transformer", "Dense", "Normalize", "Dense"), "in this order"),
        (("MLMTransformer", "SpladePooling", "Normalize"), "in this order"),
        (("Pooling", "Transformer"), "in this order"),
        (("Transformer", "Normalize", "Pooling"), "in this order"),
    ],
)
def test_refused_modules(kinds: tuple[str, ...], message: str, tmp_path: Path) -> None:
    folder = with_pooling(edited(BERT, tmp_path / "m"), {"pooling_mode": "mean"}, kinds)
    with pytest.raises(CheckpointError, match=message):
        resolve_model(folder)


def test_module_paths_stay_inside(tmp_path: Path) -> None:
    folder = with_pooling(edited(BERT, tmp_path / "m"), {"pooling_mode": "mean"})
    text = (folder / "modules.json").read_text().replace("1_Pooling", "../1_Pooling")
    (folder / "modules.json").write_text(text)
    with pytest.raises(CheckpointError, match="leads out"):
        resolve_model(folder)


def test_transformer_in_a_subfolder(tmp_path: Path) -> None:
    edited(BERT, tmp_path / "m" / "0_Transformer")
    with_pooling(tmp_path / "m", {"pooling_mode": "max"}, ("Transformer", "Pooling", "Normalize"))
    text = (tmp_path / "m" / "modules.json").read_text().replace('""', '"0_Transformer"')
    (tmp_path / "m" / "modules.json").write_text(text)
    files = resolve_model(tmp_path / "m")
    assert files.spec["embedding"] == {"pooling": "max", "normalize": True}
    assert files.safetensors == [tmp_path / "m" / "0_Transformer" / "model.safetensors"]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"sentence_bert_config.json": {"max_seq_length": 64}}, 64),
        ({"sentence_roberta_config.json": {"max_seq_length": 4096}}, 120),
        ({"tokenizer_config.json": {"model_max_length": 100}}, 100),
        ({"tokenizer_config.json": {"model_max_length": int(1e30)}}, 120),
        (
            {
                "sentence_bert_config.json": {"max_seq_length": 64},
                "tokenizer_config.json": {"model_max_length": 100},
            },
            64,
        ),
    ],
)
def test_max_length(files: dict[str, Any], expected: int | None, tmp_path: Path) -> None:
    folder = edited(BERT, tmp_path / "m")
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    assert resolve_model(folder).spec.get("max_length") == expected
