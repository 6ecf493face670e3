"""Settings that checkpoints leave out, or keep where one may overlook them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from checkpoints import GOLDEN, edited
from packhorse_weights import CheckpointError, resolve_model
from packhorse_weights.spec import blocks_of


def test_settings_that_the_config_leaves_out(tmp_path: Path) -> None:
    """Values are the defaults of the classes of transformers."""
    for name, field, found in (
        ("albert", "hidden_act", lambda layers: layers[0][1]["activation"] == "gelu_tanh"),
        (
            "mistral",
            "sliding_window",
            lambda layers: [attention["window"] for attention, _ in layers] == [4095, 4095],
        ),
        (
            "qwen2-window",
            "sliding_window",
            lambda layers: layers[-1][0]["window"] == 4095,
        ),
        ("qwen2", "sliding_window", lambda layers: "window" not in layers[0][0]),
    ):
        folder = edited(GOLDEN / name, tmp_path / name, lambda c, field=field: c.pop(field, None))
        assert found(blocks_of(resolve_model(folder).spec)), name
    folder = edited(
        GOLDEN / "albert-predictions", tmp_path / "head", lambda config: config.pop("hidden_act")
    )
    assert resolve_model(folder).spec["heads"]["masked_lm"]["activation"] == "gelu_tanh"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model_args": {"num_hidden_layers": 1}}, "model_args: 'num_hidden_layers' is not supp"),
        ({"model_kwargs": {"variant": "x"}}, "model_kwargs: 'variant' is not supported"),
        ({"tokenizer_args": {"model_max_length": 7}}, "tokenizer_args: 'model_max_length'"),
        ({"config_args": {"is_decoder": True}}, "is_decoder = True is not supported"),
        (
            {"modality_config": {"text": {"method_output_name": "pooler_output"}}},
            "method_output_name = 'pooler_output' is not supported",
        ),
    ],
)
def test_refused_arguments_of_modules(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = edited(GOLDEN / "bert-gelu", tmp_path / "m")
    (folder / "sentence_bert_config.json").write_text(json.dumps(settings))
    with pytest.raises(CheckpointError, match=message):
        resolve_model(folder)


def test_arguments_of_modules(tmp_path: Path) -> None:
    folder = edited(GOLDEN / "bert-gelu", tmp_path / "m")
    settings = {
        "model_args": {"torch_dtype": "float16", "trust_remote_code": True},
        "config_kwargs": {"hidden_act": "relu", "trust_remote_code": True},
    }
    (folder / "sentence_bert_config.json").write_text(json.dumps(settings))
    assert blocks_of(resolve_model(folder).spec)[0][1]["activation"] == "relu"


def test_texts_that_end_with_padding(tmp_path: Path) -> None:
    """transformers takes the token before for the last one."""
    processor = {
        "type": "TemplateProcessing",
        "single": [
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "end", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
        "special_tokens": {"end": {"id": "end", "ids": [9], "tokens": ["end"]}},
    }
    for padding in (9, 8, None):
        folder = edited(
            GOLDEN / "qwen3-reranker",
            tmp_path / str(padding),
            lambda config, padding=padding: config.update(pad_token_id=padding),
        )
        (folder / "tokenizer.json").write_text(json.dumps({"post_processor": processor}))
        classifier = resolve_model(folder).spec["heads"]["classifier"]
        assert (classifier["input"], classifier.get("padding_id")) == ("last", padding)
