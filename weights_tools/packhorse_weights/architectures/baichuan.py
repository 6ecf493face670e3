"""Baichuan (2023): Llama with one matrix for queries, keys and values. The 7B models rotate, those
of 13B add ALiBi to scores. Baichuan 2 scales the rows of its last layer to length 1.

Source: `modeling_baichuan.py` beside the checkpoints, whose 7B and 13B forms differ as here; vLLM
tells them apart by their width, too.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from packhorse_weights.activations import ACTIVATIONS
from packhorse_weights.architectures.base import Architecture, refuse_variants, rms_norms, sizes
from packhorse_weights.architectures.heads import LmHead
from packhorse_weights.config import Config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.spec import Spec
from packhorse_weights.tensor import LazyTensor, Tensor, cast

_WIDTH_OF_13B = 5120
_VOCABULARY_OF_2 = 125696  # only these models scale the rows of the last layer


def has_alibi(config: Config) -> bool:
    return config.integer("hidden_size") >= _WIDTH_OF_13B or (
        "max_position_embeddings" not in config.fields and "model_max_length" in config.fields
    )


def spec(model_type: str, config: Config) -> Spec:
    refuse_variants(config)
    result = sizes(model_type, config)
    if result["num_kv_heads"] != result["num_heads"]:
        raise CheckpointError(f"{config.where}: num_key_value_heads is not supported in Baichuan")
    attention: Spec = {"mask": "causal", "qkv_bias": False, "output_bias": False}
    if has_alibi(config):
        longest = config.tokens("model_max_length", default=4096)
        attention["score_term"] = {"kind": "alibi"}
    else:
        longest = config.tokens("max_position_embeddings", default=4096)
        attention["rope"] = {"theta": 10000.0, "dims": result["head_dim"]}
    return {
        **result,
        "type_vocab_size": 0,
        "max_seqlen": longest,
        "positions": {"kind": "none"},
        "norm": rms_norms(config, 1e-6),
        "attention": attention,
        "ffn": {
            "kind": "gated",
            "activation": config.choice("hidden_act", ACTIVATIONS, "silu"),
            "up_bias": False,
            "down_bias": False,
        },
    }


def made(config: Config, prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The last layer with rows of length 1, where the model has it so."""
    head = tensors.get("lm_head.weight")
    if head is None or config.fields.get("vocab_size") != _VOCABULARY_OF_2:
        return {}

    def make() -> NDArray[np.float32]:
        rows = np.asarray(cast(head, "float32", "lm_head.weight").data, np.float32)
        lengths = np.sqrt(np.square(rows).sum(axis=1, keepdims=True))
        scaled: NDArray[np.float32] = rows / np.maximum(lengths, np.float32(1e-12))
        return scaled

    return {"lm_head.weight": LazyTensor(make, head.shape, "float32", head.stored)}


ARCHITECTURE = Architecture(
    classes={"baichuan": "Baichuan"},
    spec=spec,
    names={
        "embeddings.word": "embed_tokens.weight",
        "layers.{i}.attention.qkv": "layers.{i}.self_attn.W_pack",
        "layers.{i}.attention.output": "layers.{i}.self_attn.o_proj",
        "layers.{i}.attention.norm": "layers.{i}.input_layernorm",
        "layers.{i}.ffn.gate": "layers.{i}.mlp.gate_proj",
        "layers.{i}.ffn.up": "layers.{i}.mlp.up_proj",
        "layers.{i}.ffn.down": "layers.{i}.mlp.down_proj",
        "layers.{i}.ffn.norm": "layers.{i}.post_attention_layernorm",
        "final_norm": "norm",
    },
    encoder=("embed_tokens.", "layers.", "norm."),
    unused=("layers.{i}.self_attn.rotary_emb.inv_freq",),
    lm_head=LmHead(),
    made=made,
)
