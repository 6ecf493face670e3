"""A broken field of a config is named in an error, whatever is there instead of its value: nothing
else is raised, and nothing large is made of it."""

from __future__ import annotations

import functools
import json
import tracemalloc
from typing import Any

import pytest
from checkpoints import GOLDEN
from mutations import check, mutations
from packhorse_weights.architectures import FAMILIES, find_architecture
from packhorse_weights.config import Config
from packhorse_weights.errors import CheckpointError

_ROPE = json.loads((GOLDEN / "rope.json").read_text())
_SIZES = {
    "vocab_size": 8,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 8,
    "max_position_embeddings": 64,
}
_OWN: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_inner": None, "n_positions": 64},
    "gptj": {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "rotary_dim": 8},
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 8, "activation": "gelu"},
    "nomic_bert": {
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 2,
        "n_inner": 8,
        "n_positions": 64,
        "activation_function": "swiglu",
    },
    "deberta-v2": {
        "relative_attention": True,
        "pos_att_type": ["c2p", "p2c"],
        "conv_kernel_size": 3,
        "position_buckets": 4,
        "max_relative_positions": -1,
        "norm_rel_ebd": "layer_norm",
    },
    "deberta": {"relative_attention": True, "pos_att_type": "c2p|p2c"},
    "opt": {"ffn_dim": 8, "word_embed_proj_dim": 16, "architectures": ["OPTForCausalLM"]},
    "zaya": {
        "moe_intermediate_size": 8,
        "layer_types": ["hybrid", "hybrid_sliding"],
        "sliding_window": 8,
        "num_experts": 4,
        "rope_parameters": {"hybrid": {"rope_theta": 1e6, "partial_rotary_factor": 0.5}},
    },
    "smollm3": {"no_rope_layers": [1, 0], "no_rope_layer_interval": 2},
    "modernbert": {
        "layer_types": ["full_attention", "sliding_attention"],
        "local_attention": 8,
        "global_attn_every_n_layers": 2,
    },
    "gemma3_text": {"sliding_window_pattern": 2, "query_pre_attn_scalar": 16, "sliding_window": 8},
    "gemma2": {"attn_logit_softcapping": 9.0, "sliding_window": 8},
    "qwen2": {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    "mistral": {"sliding_window": 8, "head_dim": 16},
    "electra": {"embedding_size": 16},
    "albert": {"num_hidden_groups": 2, "embedding_size": 16},
    "bert": {"position_embedding_type": "alibi", "feed_forward_type": "geglu"},
    "new": {"rope_scaling": {"type": "ntk", "factor": 2.0}, "position_embedding_type": "rope"},
    "roberta": {"pad_token_id": 1},
}
CONFIGS: dict[str, dict[str, Any]] = {
    model_type: {"model_type": model_type, **_SIZES, **_OWN.get(model_type, {})}
    for family in FAMILIES
    for model_type in family.classes
} | {name: case["config"] for name, case in _ROPE.items()}


def read(fields: dict[str, Any]) -> dict[str, Any]:
    config = Config(fields, "config.json")
    model_type, family = find_architecture(config)
    spec = family.spec(model_type, config)
    for ending in family.heads:
        family.heads[ending].options(config)
    for head in (family.masked_lm, family.lm_head):
        if head is not None:
            head.options(config)
    return spec


@pytest.mark.parametrize("name", CONFIGS)
def test_specs(name: str) -> None:
    fields = CONFIGS[name]
    for what, broken in mutations(fields):
        check(functools.partial(read, broken), what)


@pytest.mark.parametrize("name", ["yarn", "longrope", "gemma3_text", "modernbert", "smollm3"])
def test_memory(name: str) -> None:
    """Nothing large is made of a number in a config before a tensor is looked at."""
    fields = CONFIGS[name]
    cases = [(field, 2**31 - 1) for field, value in fields.items() if type(value) is int]
    for field, most in [*cases, ("head_dim", 2**18)]:
        tracemalloc.start()
        check(functools.partial(read, fields | {field: most}), field)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 20 << 20, field


def test_greatest_sizes() -> None:
    sizes = {"head_dim": 2**31 - 1, "num_hidden_layers": 2**31 - 1, "hidden_size": 2**40}
    for field, value in sizes.items():
        with pytest.raises(CheckpointError, match=f"config.json: {field}: expected a whole number"):
            read(CONFIGS["yarn"] | {field: value})
