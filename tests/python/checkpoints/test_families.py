"""Specs that each family makes of its configs; whole models are compared in test_golden.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import packhorse
import pytest
from checkpoints import GOLDEN, edited
from packhorse_weights import CheckpointError, resolve_model
from packhorse_weights.architectures import find_architecture
from packhorse_weights.config import Config
from packhorse_weights.spec import from_layer, is_causal, stack_of


def described(config: dict[str, Any]) -> dict[str, Any]:
    """Returns what a family says of its config, of which `from_layer` makes the spec."""
    wrapped = Config(config, "config.json")
    model_type, family = find_architecture(wrapped)
    return family.spec(model_type, wrapped)


BERT_LARGE = {
    "model_type": "bert",
    "vocab_size": 30522,
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
    "use_cache": True,
}
# Fields of published configs that decide something, by the model that has them.
PUBLISHED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # BGE large, E5 large v2, Snowflake Arctic Embed l, mxbai large
    "bert-large": (BERT_LARGE, {"positions": {"kind": "learned", "count": 512, "offset": 0}}),
    # BGE-M3, multilingual E5 large, Arctic Embed l v2.0
    "xlm-roberta-large": (
        {
            **BERT_LARGE,
            "model_type": "xlm-roberta",
            "vocab_size": 250002,
            "max_position_embeddings": 8194,
            "type_vocab_size": 1,
            "pad_token_id": 1,
            "layer_norm_eps": 1e-05,
        },
        {
            "positions": {"kind": "learned", "count": 8194, "offset": 2, "padding_id": 1},
            "max_seqlen": 8192,
        },
    ),
    "deberta-v3-base": (
        {
            **BERT_LARGE,
            "model_type": "deberta-v2",
            "hidden_size": 768,
            "num_attention_heads": 12,
            "num_hidden_layers": 12,
            "intermediate_size": 3072,
            "layer_norm_eps": 1e-07,
            "max_relative_positions": -1,
            "position_buckets": 256,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "pos_att_type": "p2c|c2p",
            "relative_attention": True,
            "position_biased_input": False,
            "type_vocab_size": 0,
        },
        {
            "positions": {"kind": "none"},
            "max_seqlen": 512,
            "attention": {
                "mask": "bidirectional",
                "score_term": {
                    "kind": "disentangled",
                    "buckets": 256,
                    "max_distance": 512,
                    "content_to_position": True,
                    "position_to_content": True,
                    "shared_projections": True,
                    "norm": True,
                },
            },
        },
    ),
    "modernbert-base": (
        {
            "model_type": "modernbert",
            "vocab_size": 50368,
            "hidden_size": 768,
            "num_hidden_layers": 4,
            "num_attention_heads": 12,
            "intermediate_size": 1152,
            "max_position_embeddings": 8192,
            "global_attn_every_n_layers": 3,
            "global_rope_theta": 160000.0,
            "local_rope_theta": 10000.0,
            "local_attention": 128,
            "hidden_activation": "gelu",
            "norm_eps": 1e-05,
            "norm_bias": False,
            "attention_bias": False,
            "mlp_bias": False,
        },
        {
            "attention": {
                "mask": "bidirectional",
                "qkv_bias": False,
                "output_bias": False,
                "rope": {"theta": 160000.0},
            },
            "ropes": {"local": {"theta": 10000.0}},
            "layers": [{}, *[{"window": 64, "rope": "local"}] * 2, {}],
        },
    ),
    "nomic-embed-text-v1": (
        {
            "model_type": "nomic_bert",
            "vocab_size": 30528,
            "n_embd": 768,
            "n_layer": 12,
            "n_head": 12,
            "n_inner": 3072,
            "n_positions": 8192,
            "rotary_emb_base": 1000,
            "rotary_emb_fraction": 1.0,
            "rotary_emb_interleaved": False,
            "rotary_emb_scale_base": None,
            "rotary_scaling_factor": 2,
            "activation_function": "swiglu",
            "layer_norm_epsilon": 1e-12,
            "prenorm": False,
            "qkv_proj_bias": False,
            "mlp_fc1_bias": False,
            "mlp_fc2_bias": False,
            "type_vocab_size": 2,
            "causal": False,
        },
        {
            "max_seqlen": 2048,
            "norm": {"kind": "layer", "placement": "post", "eps": 1e-12},
            "ffn": {"kind": "gated", "activation": "silu", "up_bias": False, "down_bias": False},
        },
    ),
    "gte-base-en-v1.5": (
        {
            **BERT_LARGE,
            "model_type": "new",
            "position_embedding_type": "rope",
            "rope_theta": 500000,
            "rope_scaling": {"factor": 2.0, "type": "ntk"},
            "layer_norm_type": "layer_norm",
            "logn_attention_scale": False,
            "pack_qkv": True,
            "max_position_embeddings": 8192,
            "type_vocab_size": 0,
        },
        {
            "type_vocab_size": 0,
            "attention": {
                "mask": "bidirectional",
                "rope": {"theta": 1e6, "factor": 2.0 ** (2 / 64)},
            },
        },
    ),
    "qwen3-embedding-0.6b": (
        {
            "model_type": "qwen3",
            "vocab_size": 151669,
            "hidden_size": 1024,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 3072,
            "max_position_embeddings": 32768,
            "max_window_layers": 28,
            "use_sliding_window": False,
            "sliding_window": None,
            "rms_norm_eps": 1e-06,
            "rope_scaling": None,
            "rope_theta": 1000000,
            "attention_bias": False,
            "hidden_act": "silu",
        },
        {
            "head_dim": 128,
            "norm": {"kind": "rms", "placement": "pre", "eps": 1e-06, "embeddings": False},
            "attention": {
                "mask": "causal",
                "qkv_bias": False,
                "output_bias": False,
                "qk_norm": True,
                "rope": {"theta": 1e6},
            },
        },
    ),
    "e5-mistral": (
        {
            "model_type": "mistral",
            "vocab_size": 32000,
            "hidden_size": 4096,
            "num_hidden_layers": 2,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 14336,
            "max_position_embeddings": 32768,
            "sliding_window": 4096,
            "rms_norm_eps": 1e-05,
            "rope_theta": 10000.0,
        },
        {
            "attention": {
                "mask": "causal",
                "qkv_bias": False,
                "output_bias": False,
                "qk_norm": False,
                "rope": {"theta": 10000.0},
            },
            "layers": [{"window": 4095}] * 2,
        },
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs(name: str) -> None:
    config, expected = PUBLISHED[name]
    found = described(config)
    assert {field: found[field] for field in expected} == expected
    # The runtime understands what the family says.
    small = {**found, "num_layers": 2, "vocab_size": 8}
    if "layers" in found:
        small["layers"] = found["layers"][:2]
    embedding = {"pooling": "cls", "normalize": True}
    packhorse.plan_memory(from_layer(small) | {"embedding": embedding}, max_tokens=16)


@pytest.mark.parametrize(
    ("folder", "changes", "message"),
    [
        ("distilbert", {"activation": "mish"}, "'mish' is not supported"),
        ("albert", {"inner_group_num": 2}, "inner_group_num = 2"),
        ("albert", {"num_hidden_groups": 9}, "num_hidden_groups: expected .* from 1 to 3"),
        ("electra-small", {"position_embedding_type": "relative_key"}, "relative_key"),
        ("mpnet", {"relative_attention_num_buckets": 16}, "relative_attention_num_buckets"),
        ("deberta-v3", {"conv_kernel_size": 4}, "conv_kernel_size 4 is not odd"),
        ("deberta-v3", {"conv_kernel_size": 3, "conv_groups": 2}, "conv_groups = 2"),
        ("deberta", {"talking_head": True}, "talking_head = True"),
        ("deberta", {"position_buckets": 256}, "position_buckets = 256"),
        ("deberta-v3", {"relative_attention": False}, "relative_attention = false"),
        ("deberta-v3", {"pos_att_type": "c2p|p2p"}, "pos_att_type 'c2p|p2p'"),
        ("deberta-v3", {"pos_att_type": None}, "pos_att_type"),
        ("deberta-v3", {"norm_rel_ebd": "batch_norm"}, "norm_rel_ebd"),
        ("deberta-v3", {"embedding_size": 16}, "embedding_size = 16"),
        ("modernbert", {"local_attention": 25}, "local_attention 25 is not even"),
        ("modernbert", {"layer_types": ["full_attention"]}, "layer_types"),
        ("modernbert", {"layer_types": ["chunked_attention"] * 5}, "layer_types"),
        (
            "modernbert",
            {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}},
            "rope_type = 'yarn'",
        ),
        (
            "modernbert",
            {"rope_scaling": {"rope_type": "linear", "factor": 2}},
            "rope_type = 'linear'",
        ),
        ("nomic-bert", {"prenorm": True}, "prenorm = True"),
        ("nomic-bert", {"num_experts": 8}, "num_experts = 8"),
        ("nomic-bert", {"rotary_emb_fraction": 0.5}, "rotary_emb_fraction"),
        ("nomic-bert", {"rotary_emb_interleaved": True}, "rotary_emb_interleaved"),
        ("gte", {"rope_scaling": {"type": "dynamic", "factor": 2}}, "rope_scaling"),
        ("gte", {"rope_scaling": {"type": "ntk", "factor": 2, "mixed_b": 0.3}}, "mixed_b"),
        ("gte", {"logn_attention_scale": True}, "logn_attention_scale"),
        ("gte", {"layer_norm_type": "rms_norm"}, "layer_norm_type"),
        ("qwen2", {"rope_parameters": {"rope_type": "dynamic"}}, "factor: expected a number"),
        ("qwen2", {"rope_parameters": {"rope_type": "proportional"}}, "rope_type = 'proportional'"),
        ("qwen2", {"rope_parameters": {"rope_type": "linear"}}, "factor: expected a number"),
        (
            "qwen2",
            {"rope_parameters": {"full_attention": {}}},
            "'full_attention': a rotation of its own",
        ),
        (
            "qwen2",
            {"rope_scaling": {"type": "yarn", "original_max_position_embeddings": 1}},
            "original_max_position_embeddings: expected a whole number from 2",
        ),
        (
            "qwen2",
            {
                "rope_parameters": {
                    "rope_type": "longrope",
                    "original_max_position_embeddings": 9,
                    "short_factor": [1, 2],
                }
            },
            "short_factor: expected a list of 4 numbers",
        ),
        ("qwen2", {"num_key_value_heads": None}, "num_key_value_heads"),
        ("qwen2", {"layer_types": ["sliding_attention"] * 2}, "without a sliding_window"),
        ("mistral", {"is_causal": False}, "is_causal"),
        ("qwen3", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ("llama", {"pretraining_tp": 2}, "pretraining_tp"),
        ("llama", {"quantization_config": {"bits": 4}}, "quantization_config"),
    ],
)
def test_refused(folder: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    model = edited(GOLDEN / folder, tmp_path / "m", lambda config: config.update(changes))
    with pytest.raises(CheckpointError, match=message):
        resolve_model(model)


def test_scaled_rotations_in_the_older_form(tmp_path: Path) -> None:
    def older(config: dict[str, Any]) -> None:
        scaling = config.pop("rope_parameters")
        config["rope_theta"] = scaling.pop("rope_theta")
        config["rope_scaling"] = scaling | {"type": scaling.pop("rope_type")}

    for name in (
        "llama-linear",
        "llama-dynamic",
        "llama-llama3",
        "qwen2-yarn",
        "mistral-longrope",
    ):
        folder = edited(GOLDEN / name, tmp_path / name, older)
        assert resolve_model(folder).spec == resolve_model(GOLDEN / name).spec


def test_long_rope_ends_at_the_trained_length(tmp_path: Path) -> None:
    def longer(config: dict[str, Any]) -> None:
        config["max_position_embeddings"] = 500

    folder = edited(GOLDEN / "mistral-longrope", tmp_path / "m", longer)
    assert resolve_model(folder).spec["max_seqlen"] == 128


def test_dynamic_rope_ends_at_the_trained_length() -> None:
    session = packhorse.Session.load(GOLDEN / "llama-dynamic", max_tokens=200)
    assert stack_of(session.config)["ropes"] == {"global": {"theta": 100.0}}
    assert session.run([range(5, 100)] * 2).hidden.shape == (190, 32)
    with pytest.raises(ValueError, match="121 tokens.*120"):
        session.run([[5] * 121])


def test_decoders_that_see_everything(tmp_path: Path) -> None:
    config = {"is_causal": False}
    folder = edited(GOLDEN / "qwen2", tmp_path / "m", lambda fields: fields.update(config))
    assert not is_causal(resolve_model(folder).spec)
    assert is_causal(resolve_model(GOLDEN / "qwen2").spec)


def test_shared_layers_are_loaded_once() -> None:
    """ALBERT-xxlarge: twelve layers, the weights of one."""
    config = {
        "model_type": "albert",
        "vocab_size": 30000,
        "embedding_size": 128,
        "hidden_size": 4096,
        "num_hidden_layers": 12,
        "num_attention_heads": 64,
        "intermediate_size": 16384,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "num_hidden_groups": 1,
        "inner_group_num": 1,
        "hidden_act": "gelu",
    }
    spec = from_layer(described(config)) | {"embedding": {"pooling": "cls", "normalize": False}}
    plan = packhorse.plan_memory(spec, max_tokens=64).weights
    layers = [buffer.name for buffer in plan.buffers if buffer.name.startswith("layers.")]
    assert layers
    assert all(name.startswith("layers.0.") for name in layers)
    elements = 30000 * 128 + 514 * 128 + 128 * 4096 + 4 * 4096**2 + 2 * 4096 * 16384
    assert 4 * elements <= plan.bytes < 4.02 * elements
