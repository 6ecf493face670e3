"""The tensors of a GGUF file under the names that the same model has in a Hugging Face folder.

What llama.cpp's converters do to the values of some is undone: rows of queries and keys that were
reordered for another form of rotation, stacks of query, key and value, norms that had 1 added,
matrices that were transposed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from packhorse_weights.errors import CheckpointError
from packhorse_weights.formats.gguf.config import read_architecture
from packhorse_weights.formats.gguf.file import GgufFile, StoredTensor
from packhorse_weights.formats.gguf.metadata import Fields
from packhorse_weights.formats.gguf.tensor import Order, open_tensor, transposed
from packhorse_weights.tensor import Tensor, to_float32

# Models of two stacks say of which one a layer is.
_LAYER = re.compile(r"((?:enc|dec)\.)?blk\.(0|[1-9]\d{0,4})\.")
# Tables of the rotation: config.py reads them, or they follow from the config.
_OF_ROTATION = re.compile(
    r"rope_freqs\.weight|rope_factors_(short|long)\.weight|blk\.\d+\.attn_rot_embd\.weight"
)


MakeOrder = Callable[[Fields], Order]


@dataclass(frozen=True)
class _Names:
    """The names of an architecture. `layers` maps those of GGUF to those of Hugging Face, both
    without .weight and .bias; `{i}` stands for a layer's number.

    `orders` says how the rows of some lie in the file, and `transposed` names the matrices that the
    file holds transposed. `norms_plus_one` says that 1 was added to the weights of norms.
    """

    layers: Mapping[str, str]
    orders: Mapping[str, MakeOrder] = field(default_factory=dict)
    transposed: tuple[str, ...] = ()
    norms_plus_one: bool = False


def _interleaved(heads: str) -> MakeOrder:
    """The rows of a head are taken from its two halves in turn, as llama.cpp rotates neighbours."""

    def order(fields: Fields) -> Order:
        return (fields[heads], fields["head_dim"] // 2, 2), (1, 2)

    return order


def _by_kind(fields: Fields) -> Order:
    """Order of a fused layer in which all queries come first, then all keys and values. In the
    model, query, key and value of each head stand together."""
    heads = fields["num_attention_heads"]
    return (3, heads, fields["hidden_size"] // heads), (0, 1)


_ENDS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_GATED = {
    **_ENDS,
    "blk.{i}.attn_norm": "model.layers.{i}.input_layernorm",
    "blk.{i}.attn_q": "model.layers.{i}.self_attn.q_proj",
    "blk.{i}.attn_k": "model.layers.{i}.self_attn.k_proj",
    "blk.{i}.attn_v": "model.layers.{i}.self_attn.v_proj",
    "blk.{i}.attn_output": "model.layers.{i}.self_attn.o_proj",
    "blk.{i}.ffn_norm": "model.layers.{i}.post_attention_layernorm",
    "blk.{i}.ffn_gate": "model.layers.{i}.mlp.gate_proj",
    "blk.{i}.ffn_up": "model.layers.{i}.mlp.up_proj",
    "blk.{i}.ffn_down": "model.layers.{i}.mlp.down_proj",
}
_HEAD_NORMS = {
    "blk.{i}.attn_q_norm": "model.layers.{i}.self_attn.q_norm",
    "blk.{i}.attn_k_norm": "model.layers.{i}.self_attn.k_norm",
}
_GEMMA = {
    **_GATED,
    "blk.{i}.post_attention_norm": "model.layers.{i}.post_attention_layernorm",
    "blk.{i}.ffn_norm": "model.layers.{i}.pre_feedforward_layernorm",
    "blk.{i}.post_ffw_norm": "model.layers.{i}.post_feedforward_layernorm",
}
_T5_ENDS = {
    "token_embd": "shared",
    "output": "lm_head",
    "enc.output_norm": "encoder.final_layer_norm",
    "dec.output_norm": "decoder.final_layer_norm",
}
_T5_ATTENTION = {"q": "q", "k": "k", "v": "v", "o": "o", "rel_b": "relative_attention_bias"}


def _t5_side(short: str, side: str, gated: bool) -> dict[str, str]:
    """The names of a stack's layers."""
    blocks = [("attn", "SelfAttention")]
    blocks += [("cross_attn", "EncDecAttention")] if side == "decoder" else []
    here, there = f"{short}.blk.{{i}}", f"{side}.block.{{i}}.layer"
    found = {}
    for i, (ours, theirs) in enumerate(blocks):
        found[f"{here}.{ours}_norm"] = f"{there}.{i}.layer_norm"
        for one, other in _T5_ATTENTION.items():
            found[f"{here}.{ours}_{one}"] = f"{there}.{i}.{theirs}.{other}"
    last = f"{there}.{len(blocks)}"
    found[f"{here}.ffn_norm"] = f"{last}.layer_norm"
    found[f"{here}.ffn_down"] = f"{last}.DenseReluDense.wo"
    found[f"{here}.ffn_up"] = f"{last}.DenseReluDense.{'wi_1' if gated else 'wi'}"
    if gated:
        found[f"{here}.ffn_gate"] = f"{last}.DenseReluDense.wi_0"
    return found


def _t5_names(gated: bool) -> _Names:
    sides = _t5_side("enc", "encoder", gated) | _t5_side("dec", "decoder", gated)
    return _Names({**_T5_ENDS, **sides})


_NAMES = {
    "llama": _Names(
        _GATED,
        orders={
            "blk.{i}.attn_q": _interleaved("num_attention_heads"),
            "blk.{i}.attn_k": _interleaved("num_key_value_heads"),
        },
    ),
    "qwen2": _Names(_GATED),
    "qwen3": _Names({**_GATED, **_HEAD_NORMS}),
    "phi3": _Names(
        {
            **_ENDS,
            "blk.{i}.attn_norm": "model.layers.{i}.input_layernorm",
            "blk.{i}.attn_qkv": "model.layers.{i}.self_attn.qkv_proj",
            "blk.{i}.attn_output": "model.layers.{i}.self_attn.o_proj",
            "blk.{i}.ffn_norm": "model.layers.{i}.post_attention_layernorm",
            "blk.{i}.ffn_up": "model.layers.{i}.mlp.gate_up_proj",
            "blk.{i}.ffn_down": "model.layers.{i}.mlp.down_proj",
        }
    ),
    "gemma2": _Names(_GEMMA, norms_plus_one=True),
    "gemma3": _Names({**_GEMMA, **_HEAD_NORMS}, norms_plus_one=True),
    "gpt2": _Names(
        {
            "token_embd": "transformer.wte",
            "position_embd": "transformer.wpe",
            "output_norm": "transformer.ln_f",
            "output": "lm_head",
            "blk.{i}.attn_norm": "transformer.h.{i}.ln_1",
            "blk.{i}.attn_qkv": "transformer.h.{i}.attn.c_attn",
            "blk.{i}.attn_output": "transformer.h.{i}.attn.c_proj",
            "blk.{i}.ffn_norm": "transformer.h.{i}.ln_2",
            "blk.{i}.ffn_up": "transformer.h.{i}.mlp.c_fc",
            "blk.{i}.ffn_down": "transformer.h.{i}.mlp.c_proj",
        },
        transposed=(
            "blk.{i}.attn_qkv",
            "blk.{i}.attn_output",
            "blk.{i}.ffn_up",
            "blk.{i}.ffn_down",
        ),
    ),
    "gptneox": _Names(
        {
            "token_embd": "gpt_neox.embed_in",
            "output_norm": "gpt_neox.final_layer_norm",
            "output": "embed_out",
            "blk.{i}.attn_norm": "gpt_neox.layers.{i}.input_layernorm",
            "blk.{i}.attn_qkv": "gpt_neox.layers.{i}.attention.query_key_value",
            "blk.{i}.attn_output": "gpt_neox.layers.{i}.attention.dense",
            "blk.{i}.ffn_norm": "gpt_neox.layers.{i}.post_attention_layernorm",
            "blk.{i}.ffn_up": "gpt_neox.layers.{i}.mlp.dense_h_to_4h",
            "blk.{i}.ffn_down": "gpt_neox.layers.{i}.mlp.dense_4h_to_h",
        },
        orders={"blk.{i}.attn_qkv": _by_kind},
    ),
    **dict.fromkeys(("t5", "t5encoder"), _t5_names(gated=False)),
}
_T5_GATED = _t5_names(gated=True)


def _open(
    names: _Names, layer: str, suffix: str, stored: StoredTensor, fields: Fields, what: str
) -> Tensor:
    order = names.orders[layer](fields) if layer in names.orders else None
    if order is not None and math.prod(order[0]) != stored.shape[0]:
        raise CheckpointError(
            f"{what}: {stored.shape[0]} rows; expected {math.prod(order[0])} "
            f"({' x '.join(map(str, order[0]))})"
        )
    tensor = open_tensor(stored, order)
    if names.norms_plus_one and layer.endswith("norm") and suffix == "weight":
        return Tensor(to_float32(tensor) - np.float32(1), "float32")
    if layer in names.transposed and suffix == "weight":
        return transposed(tensor)
    return tensor


def _depth(fields: Fields, name: str) -> int:
    """The number of layers of the stack that a tensor belongs to."""
    keys: tuple[str, ...] = ("num_hidden_layers", "n_layer", "num_layers")
    if name.startswith("dec."):
        keys = ("num_decoder_layers", *keys)
    return int(next(fields[key] for key in keys if fields.get(key)))


def read_tensors(file: GgufFile, fields: Fields) -> dict[str, Tensor]:
    """Returns the tensors under their names in a Hugging Face folder. No values are read but those
    of norms. `fields` are those of config.json (`config.read_config`).

    Raises CheckpointError for a tensor that no model of
    the architecture has.
    """
    names = _NAMES[read_architecture(file)]
    if str(fields.get("feed_forward_proj")).startswith("gated"):
        names = _T5_GATED
    found: dict[str, Tensor] = {}
    for name, stored in file.tensors.items():
        if _OF_ROTATION.fullmatch(name):
            continue
        what = f"{file.path}: tensor {name!r}"
        match = _LAYER.match(name)
        layer, _, suffix = _LAYER.sub(r"\1blk.{i}.", name).rpartition(".")
        if layer not in names.layers or suffix not in ("weight", "bias"):
            raise CheckpointError(
                f"{what} is not supported: {file.metadata['general.architecture']} has none of "
                "that name here"
            )
        layers = _depth(fields, name)
        if match and int(match[2]) >= layers:
            raise CheckpointError(f"{what}: the model has {layers} layers")
        theirs = names.layers[layer].replace("{i}", match[2] if match else "")
        found[f"{theirs}.{suffix}"] = _open(names, layer, suffix, stored, fields, what)
    return found
