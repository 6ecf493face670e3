"""Baichuan, of which transformers has no code: the rotating one beside Llama with its matrices,
that with ALiBi beside NumPy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
from packhorse_weights import Tensor, inspect_checkpoint
from packhorse_weights.formats.safetensors import write_safetensors
from reference_encoder import encoder

CONFIG = {
    "architectures": ["BaichuanForCausalLM"],
    "model_type": "baichuan",
    "vocab_size": 90,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,  # no power of two
    "intermediate_size": 64,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
SEQUENCES = [[5, 7, 9, 11, 2], [3], [80, 1, 40]]


def tensors() -> dict[str, np.ndarray]:
    random = np.random.default_rng(4)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (random.standard_normal((rows, columns)) / columns**0.5 * 1.5).astype(np.float32)

    found = {"model.embed_tokens.weight": matrix(90, 48), "lm_head.weight": matrix(90, 48)}
    for i in range(2):
        layer = f"model.layers.{i}"
        found[f"{layer}.self_attn.W_pack.weight"] = matrix(144, 48)
        found[f"{layer}.self_attn.o_proj.weight"] = matrix(48, 48)
        for name, shape in (("gate", (64, 48)), ("up", (64, 48)), ("down", (48, 64))):
            found[f"{layer}.mlp.{name}_proj.weight"] = matrix(*shape)
        for name in ("input_layernorm", "post_attention_layernorm"):
            found[f"{layer}.{name}.weight"] = 1 + matrix(1, 48)[0]
    return {**found, "model.norm.weight": 1 + matrix(1, 48)[0]}


def write(folder: Path, arrays: dict[str, np.ndarray], config: dict[str, Any]) -> Path:
    folder.mkdir()
    held = {name: Tensor(np.ascontiguousarray(data), "float32") for name, data in arrays.items()}
    write_safetensors(folder / "model.safetensors", held, dict.fromkeys(held, "float32"))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def hidden(folder: Path) -> np.ndarray:
    with packhorse.Session.load(folder, kv_tokens=0, pooling="last") as session:
        return session.run(SEQUENCES, outputs=["hidden"]).hidden


def test_rotating_ones_are_llamas(tmp_path: Path) -> None:
    config = {**CONFIG, "max_position_embeddings": 64}
    own = write(tmp_path / "baichuan", tensors(), config)
    split: dict[str, np.ndarray] = {}
    for name, data in tensors().items():
        if "W_pack" not in name:
            split[name] = data
            continue
        for part, rows in zip("qkv", np.split(data, 3), strict=True):
            split[name.replace("W_pack", f"{part}_proj")] = rows
    named = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    llama = write(tmp_path / "llama", split, {**config, **named})
    np.testing.assert_array_equal(hidden(own), hidden(llama))
    prompts = [[5, 7, 9], [3]]
    with packhorse.Session.load(own, kv_tokens=512) as one:
        found = one.generate(prompts, packhorse.Sampling(max_new_tokens=8))
    with packhorse.Session.load(llama, kv_tokens=512) as two:
        expected = two.generate(prompts, packhorse.Sampling(max_new_tokens=8))
    assert [made.ids for made in found] == [made.ids for made in expected]


def test_those_with_alibi(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", tensors(), {**CONFIG, "model_max_length": 64})
    checkpoint = inspect_checkpoint(folder, pooling="last")
    assert checkpoint.spec["stacks"]["decoder"]["score_term"] == {"kind": "alibi"}
    held = {
        ours: checkpoint.tensors[name].data.astype(np.float64)
        for ours, name in checkpoint.names.items()
    }
    for i in range(2):
        whole = held.pop(f"layers.{i}.attention.qkv.weight")
        for part, rows in zip(("query", "key", "value"), np.split(whole, 3), strict=True):
            held[f"layers.{i}.attention.{part}.weight"] = rows
    ids = np.concatenate(SEQUENCES)
    cu = np.cumsum([0, *map(len, SEQUENCES)])
    expected = encoder(checkpoint.spec, held, ids, cu)
    np.testing.assert_allclose(hidden(folder), expected, rtol=0, atol=5e-5)
    with packhorse.Session.load(folder, kv_tokens=512) as session:
        made = session.generate([[5, 7, 9]], packhorse.Sampling(max_new_tokens=6))[0].ids
    whole_ids = np.array([5, 7, 9, *made])
    table = tensors()["lm_head.weight"].astype(np.float64)
    states = encoder(checkpoint.spec, held, whole_ids, [0, len(whole_ids)])
    assert (states @ table.T).argmax(1)[2:-1].tolist() == made


def test_rows_of_the_last_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Baichuan 2, told by the size of its vocabulary."""
    from packhorse_weights.architectures import baichuan

    monkeypatch.setattr(baichuan, "_VOCABULARY_OF_2", 90)
    folder = write(tmp_path / "model", tensors(), {**CONFIG, "max_position_embeddings": 64})
    found = inspect_checkpoint(folder)
    table = found.tensors[found.names["lm.decoder.weight"]].data
    np.testing.assert_allclose(np.linalg.norm(table, axis=1), 1, atol=1e-6)
