"""Writes rope.json: the rotations that transformers 5 makes of configs in all the forms that are
published, as frequencies and a factor of the scores.

    python tests/golden/make_rope_golden.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers

_SIZES = {
    "vocab_size": 8,
    "hidden_size": 32,
    "intermediate_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
}
_YARN = {"rope_type": "yarn", "factor": 4.0}
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.5, 2.0, 2.5, 3.0],
    "long_factor": [2.0] * 8,
}
_LAYERS = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 8}
_HALF = {"partial_rotary_factor": 0.5}
_SHORT = {"short_factor": [1.0, 1.1, 1.3, 2.0], "long_factor": [2.0] * 4}


def _scaling(**fields: Any) -> dict[str, Any]:
    return {"rope_scaling": fields}


# Name -> (model type, fields of the config beside the sizes).
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "nothing": ("llama", {}),
    "theta": ("llama", {"rope_theta": 5e5}),
    "older default": ("qwen2", {**_scaling(type="default"), "rope_theta": 300.0}),
    "mrope_section": ("qwen3", _scaling(rope_type="default", mrope_section=[4, 2, 2])),
    "default and others' fields": ("llama", _scaling(rope_type="default", factor=3.0)),
    "linear": ("llama", _scaling(type="linear", factor=3.0)),
    "linear finetuned": ("llama", _scaling(type="linear", factor=3, finetuned=True)),
    "linear theta within": (
        "llama",
        {
            "rope_theta": 7.0,
            "rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 99.0},
        },
    ),
    "both forms": (
        "llama",
        {
            **_scaling(type="linear", factor=3.0),
            "rope_parameters": {"rope_type": "linear", "factor": 5.0},
        },
    ),
    "dynamic": ("llama", _scaling(type="dynamic", factor=2.0)),
    "dynamic trained length": (
        "mistral",
        _scaling(type="dynamic", factor=2.0, original_max_position_embeddings=64, alpha=9.0),
    ),
    "yarn": ("qwen3", _scaling(**_YARN, original_max_position_embeddings=64)),
    "yarn attn_factor": (
        "qwen3",
        _scaling(**_YARN, original_max_position_embeddings=64, attn_factor=0.878),
    ),
    "yarn finetuned": (
        "llama",
        _scaling(**_YARN, original_max_position_embeddings=64, finetuned=True),
    ),
    "yarn without trained length": ("qwen3", _scaling(**_YARN)),
    "yarn null factor": (
        "llama",
        _scaling(rope_type="yarn", factor=None, original_max_position_embeddings=32),
    ),
    "yarn other ratio": ("llama", _scaling(**_YARN, original_max_position_embeddings=16)),
    "yarn betas": (
        "llama",
        _scaling(
            **_YARN, original_max_position_embeddings=64, beta_fast=8, beta_slow=2, truncate=False
        ),
    ),
    "yarn zero betas": (
        "llama",
        _scaling(**_YARN, original_max_position_embeddings=64, beta_fast=0, beta_slow=0),
    ),
    "yarn mscale": (
        "llama",
        _scaling(**_YARN, original_max_position_embeddings=64, mscale=0.7, mscale_all_dim=1.0),
    ),
    "yarn one mscale": (
        "llama",
        _scaling(**_YARN, original_max_position_embeddings=64, mscale=0.7),
    ),
    "yarn attention_factor": (
        "llama",
        _scaling(**_YARN, original_max_position_embeddings=64, attention_factor=1.5),
    ),
    "yarn trained length beside": (
        "llama",
        {
            **_scaling(**_YARN, original_max_position_embeddings=64),
            "original_max_position_embeddings": 32,
        },
    ),
    "llama3": ("llama", _scaling(**_LLAMA3, original_max_position_embeddings=64)),
    "llama3 finetuned": (
        "llama",
        _scaling(**_LLAMA3, original_max_position_embeddings=64, finetuned=True, beta_fast=3),
    ),
    "llama3 without trained length": ("llama", _scaling(**_LLAMA3)),
    "longrope": ("mistral", _scaling(**_LONG, original_max_position_embeddings=64)),
    "longrope factor": (
        "mistral",
        _scaling(**_LONG, original_max_position_embeddings=64, factor=2.0),
    ),
    "longrope trained length beside": (
        "mistral",
        {**_scaling(**_LONG, factor=2.0), "original_max_position_embeddings": 64},
    ),
    "longrope without trained length": ("mistral", _scaling(**_LONG, factor=2.0)),
    "phi3": ("phi3", {**_scaling(**_LONG), "original_max_position_embeddings": 64}),
    "phi3 newer form": (
        "phi3",
        {
            "rope_parameters": {**_LONG, "rope_theta": 500.0},
            "original_max_position_embeddings": 128,
        },
    ),
    "phi3 part": (
        "phi3",
        {
            **_scaling(**{**_LONG, **_SHORT}, attention_factor=1.0),
            **_HALF,
            "original_max_position_embeddings": 64,
        },
    ),
    "gpt_neox part": ("gpt_neox", {"rotary_pct": 0.5, "rotary_emb_base": 100}),
    "gpt_neox linear": ("gpt_neox", {**_scaling(type="linear", factor=2.0), "rotary_pct": 0.5}),
    "gpt_neox newer form": (
        "gpt_neox",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0, **_HALF}},
    ),
    "smollm3": ("smollm3", {}),
    "gemma2": ("gemma2", {"rope_theta": 300.0}),
    "gemma3": ("gemma3_text", _LAYERS),
    "gemma3 older": (
        "gemma3_text",
        {
            **_LAYERS,
            **_scaling(rope_type="linear", factor=8.0),
            "rope_theta": 5e5,
            "rope_local_base_freq": 700.0,
        },
    ),
    "gemma3 newer": (
        "gemma3_text",
        {
            **_LAYERS,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 700.0},
            },
        },
    ),
    "gemma3 one kind": (
        "gemma3_text",
        {
            **_LAYERS,
            "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0}},
            "rope_theta": 5e5,
        },
    ),
    "modernbert": ("modernbert", {"global_rope_theta": 300.0}),
    "modernbert newer": (
        "modernbert",
        {
            "layer_types": _LAYERS["layer_types"],
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 300.0},
                "sliding_attention": {"rope_type": "default"},
            },
            "local_rope_theta": 70.0,
        },
    ),
}


def _rotation(model: Any) -> dict[str, Any]:
    """The buffers of the one rotary embedding of a model. The local ones are of windowed layers."""
    (module,) = (
        one
        for one in model.modules()
        if type(one).__name__.endswith("RotaryEmbedding") and any(one.named_buffers())
    )
    buffers = {name: value.double().tolist() for name, value in module.named_buffers()}
    if "inv_freq" in buffers:
        return {"frequencies": buffers["inv_freq"], "scale": float(module.attention_scaling)}
    return {
        "frequencies": buffers["full_attention_inv_freq"],
        "local": buffers["sliding_attention_inv_freq"],
        "scale": float(module.full_attention_attention_scaling),
    }


def main() -> None:
    torch.manual_seed(0)
    found = {}
    for name, (model_type, fields) in CASES.items():
        config = {"model_type": model_type, **_SIZES, **fields}
        read = transformers.CONFIG_MAPPING[model_type].from_dict(json.loads(json.dumps(config)))
        model = transformers.AutoModel.from_config(read)
        found[name] = {"config": config, **_rotation(model)}
    path = Path(__file__).parent / "rope.json"
    lines = [f"{json.dumps(name)}: {json.dumps(case)}" for name, case in found.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
