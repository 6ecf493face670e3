"""Jina v2: BERT with ALiBi and a gated feed-forward block, and its heads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
import reference_encoder
import reference_heads
from cases import offsets
from models import random_sequences, random_tensors, with_defaults
from packhorse_weights import CheckpointError, Tensor
from packhorse_weights.architectures import find_architecture
from packhorse_weights.architectures.jina_bert import ARCHITECTURE as JINA
from packhorse_weights.config import Config
from packhorse_weights.formats.safetensors import write_safetensors
from packhorse_weights.spec import from_layer


def spec_of(config: dict[str, Any]) -> dict[str, Any]:
    wrapped = Config(config, "config.json")
    model_type, family = find_architecture(wrapped)
    return from_layer(family.spec(model_type, wrapped))


# Ending of a class's name -> heads of the spec, without fields that the config does not set.
JINA_HEADS: dict[str, Any] = {
    "ForSequenceClassification": {
        "pooler": {"activation": "tanh"},
        "classifier": {"input": "pooler", "labels": ["LABEL_0"]},
    },
    "ForTokenClassification": {"classifier": {"input": "tokens", "labels": ["LABEL_0", "LABEL_1"]}},
    "ForMaskedLM": {"masked_lm": {"activation": "gelu"}},
}
JINA_LAYERS = {
    "pooler": "bert.pooler.dense",
    "classifier": "classifier",
    "masked_lm.dense": "cls.predictions.transform.dense",
    "masked_lm.norm": "cls.predictions.transform.LayerNorm",
    "masked_lm.decoder": "cls.predictions.decoder",
}


@pytest.mark.parametrize("activation", ["geglu", "reglu"])
@pytest.mark.parametrize("head", ["Model", *JINA_HEADS])
def test_jina_v2(activation: str, head: str, tmp_path: Path) -> None:
    """transformers has no class for it: the reference is its formula. Heads are those of BERT."""
    config = {
        "model_type": "bert",
        "architectures": [f"JinaBert{head}"],
        "vocab_size": 50,
        "hidden_size": 36,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 43,
        "max_position_embeddings": 300,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "hidden_act": "gelu",
        "position_embedding_type": "alibi",
        "feed_forward_type": activation,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    heads = JINA_HEADS.get(head, {})
    spec = spec_of(config) | {"heads": heads}
    tensors = random_tensors(spec)
    stored = dict(tensors)
    if "masked_lm" in heads:  # tied
        stored.pop("masked_lm.decoder.weight")
        tensors["masked_lm.decoder.weight"] = tensors["embeddings.word"]
    for i in range(2):
        gate, up = (stored.pop(f"layers.{i}.ffn.{name}.weight") for name in ("gate", "up"))
        stored[f"layers.{i}.ffn.gate_up.weight"] = np.concatenate([gate, up])
    theirs = {}
    for ours, values in stored.items():
        generic = ours.replace("layers.0.", "layers.{i}.").replace("layers.1.", "layers.{i}.")
        stem, _, suffix = generic.rpartition(".")
        if (whole := JINA_LAYERS.get(stem)) is not None:
            theirs[f"{whole}.{suffix}"] = Tensor(values, "float32")
            continue
        name = JINA.names.get(generic) or f"{JINA.names[stem]}.{suffix}"
        layer = ours.split(".")[1] if ours.startswith("layers.") else ""
        theirs["bert." + name.replace("{i}", layer)] = Tensor(values, "float32")
    write_safetensors(tmp_path / "model.safetensors", theirs)

    sequences = random_sequences([5, 1, 130, 64])
    session = packhorse.Session.load(
        tmp_path, max_tokens=256, max_predictions=20 if "masked_lm" in heads else 0
    )
    found = session.run(sequences).hidden
    cu_seqlens = offsets([len(s) for s in sequences])
    whole = with_defaults(spec)
    if "classifier" in heads:
        logits = session.run(sequences, ["logits"]).logits
        expected = reference_encoder.classifier(
            whole, tensors, found, np.concatenate(sequences), cu_seqlens
        )
        assert np.abs(logits - expected).max() <= 5e-5
        assert session.config["heads"]["classifier"]["labels"] == heads["classifier"]["labels"]
    if "masked_lm" in heads:
        rows = np.arange(0, 200, 11)
        logits = session.run(sequences, ["predictions"], rows=rows).predictions
        expected = reference_heads.predictions(whole, tensors, found)[rows]
        assert np.abs(logits - expected).max() <= 5e-5
    expected = reference_encoder.encoder(
        with_defaults(spec), tensors, np.concatenate(sequences), cu_seqlens
    )
    assert np.abs(found - expected).max() <= 5e-5
    with pytest.raises(ValueError, match="knows distances only"):
        session.run(packhorse.PackedTokens([1, 2], [0, 2], position_ids=[1, 2]))
    config["feed_forward_type"] = "original"
    with pytest.raises(CheckpointError, match="feed_forward_type 'original'"):
        spec_of(config)
