"""Tiny Llamas that are quantised in groups, as GPTQ's and AWQ's tools write them; packed here word
by word, from what the formats say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from packhorse_weights.formats.safetensors import write_safetensors
from packhorse_weights.tensor import Tensor

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "vocab_size": 72,
    "tie_word_embeddings": False,
    "eos_token_id": 71,
    "bos_token_id": 70,
}
LAYERS = {
    "self_attn.q_proj": (64, 64),
    "self_attn.k_proj": (32, 64),
    "self_attn.v_proj": (32, 64),
    "self_attn.o_proj": (64, 64),
    "mlp.gate_proj": (96, 64),
    "mlp.up_proj": (96, 64),
    "mlp.down_proj": (64, 96),
}
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # output features of a word, from its lowest bits up
Layer = dict[str, NDArray[Any]]  # q [out, in], zero and scale [out, groups], group [in]


def random_layer(
    rows: int, columns: int, bits: int, group: int, seed: int, symmetric: bool = False
) -> Layer:
    rng = np.random.default_rng(seed)
    size = columns if group == -1 else group
    groups = -(-columns // size)
    zero = rng.integers(0 if bits == 4 else 100, 16 if bits == 4 else 156, (rows, groups))
    if symmetric:
        zero[:] = 1 << (bits - 1)
    scale = rng.uniform(0.5, 1.5, (rows, groups)) * 0.2 / (1 << (bits - 1))
    return {
        "q": rng.integers(0, 1 << bits, (rows, columns)),
        "zero": zero,
        "scale": scale.astype(np.float16),
        "group": np.arange(columns) // size,
    }


def values(layer: Layer) -> NDArray[np.float32]:
    """Values of a quantised layer, [out, in]."""
    q, group = layer["q"], layer["group"]
    scales = layer["scale"].astype(np.float32)[:, group]
    return ((q - layer["zero"][:, group]).astype(np.float32) * scales).astype(np.float32)


def words_of(columns: list[list[int]], bits: int) -> NDArray[np.int32]:
    """One word of each list of small numbers, the first in the lowest bits."""
    words = [sum(int(value) << (bits * i) for i, value in enumerate(one)) for one in columns]
    return np.array(words, np.uint32).view(np.int32)


def gptq(layer: Layer, bits: int, minus: int = 1) -> dict[str, NDArray[Any]]:
    """`minus` is what zero points have less in the file."""
    per = 32 // bits
    q, zero = layer["q"], (layer["zero"] - minus) & ((1 << bits) - 1)
    rows, columns = q.shape
    qweight = [
        words_of([q[n, k : k + per].tolist() for n in range(rows)], bits)
        for k in range(0, columns, per)
    ]
    qzeros = [
        words_of([zero[n : n + per, g].tolist() for n in range(0, rows, per)], bits)
        for g in range(zero.shape[1])
    ]
    return {
        "qweight": np.stack(qweight),
        "qzeros": np.stack(qzeros),
        "scales": np.ascontiguousarray(layer["scale"].T),
        "g_idx": layer["group"].astype(np.int32),
    }


def awq(layer: Layer) -> dict[str, NDArray[Any]]:
    def pack(matrix: NDArray[Any]) -> NDArray[np.int32]:  # [rows, out]
        return np.stack(
            [
                words_of([[row[n + i] for i in AWQ_ORDER] for n in range(0, len(row), 8)], 4)
                for row in matrix
            ]
        )

    return {
        "qweight": pack(layer["q"].T),
        "qzeros": pack(layer["zero"].T),
        "scales": np.ascontiguousarray(layer["scale"].T),
    }


def compressed(layer: Layer, bits: int) -> dict[str, NDArray[Any]]:
    """The form pack-quantized of compressed-tensors: words along a row, zero points along
    columns."""
    per = 32 // bits

    def pack(rows: NDArray[Any]) -> NDArray[np.int32]:
        whole = np.pad(rows, ((0, 0), (0, -rows.shape[1] % per)))
        words = [
            words_of([row[k : k + per].tolist() for k in range(0, len(row), per)], bits)
            for row in whole
        ]
        return np.stack(words)

    found = {
        "weight_packed": pack(layer["q"]),
        "weight_scale": layer["scale"],
        "weight_shape": np.array(layer["q"].shape, np.int64),
    }
    if (layer["zero"] != 1 << (bits - 1)).any():
        found["weight_zero_point"] = np.ascontiguousarray(pack(layer["zero"].T).T)
    if (layer["group"][1:] < layer["group"][:-1]).any():
        found["weight_g_idx"] = layer["group"].astype(np.int32)
    return found


def write_folder(
    folder: Path, layers: dict[str, dict[str, NDArray[Any]]], quantization: dict[str, Any] | None
) -> Path:
    """A folder with these tensors in its layers; all else is random, and the same each time."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(1)
    config = CONFIG | ({} if quantization is None else {"quantization_config": quantization})
    (folder / "config.json").write_text(json.dumps(config))
    tensors: dict[str, NDArray[Any]] = {
        "model.embed_tokens.weight": rng.normal(size=(72, 64)).astype(np.float32),
        "lm_head.weight": (rng.normal(size=(72, 64)) / 8).astype(np.float32),
        "model.norm.weight": np.ones(64, np.float32),
    }
    for i in range(2):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{i}.{norm}.weight"] = np.ones(64, np.float32)
    for name, parts in layers.items():
        for part, array in parts.items():
            tensors[f"{name}.{part}"] = array
    write_safetensors(
        folder / "model.safetensors",
        {name: Tensor(array, array.dtype.name) for name, array in tensors.items()},
    )
    return folder


def all_layers(bits: int, group: int, symmetric: bool = False) -> dict[str, Layer]:
    return {
        f"model.layers.{i}.{name}": random_layer(*shape, bits, group, 10 * i + j, symmetric)
        for i in range(2)
        for j, (name, shape) in enumerate(LAYERS.items())
    }


def order_by_activation(layers: dict[str, Layer]) -> None:
    """Gives the groups of input features any features, as GPTQ does with `desc_act`: the same in
    layers of the same input."""
    inputs = {"k_proj": "q_proj", "v_proj": "q_proj", "up_proj": "gate_proj"}
    for name, layer in layers.items():
        block, _, last = name.rpartition(".")
        if last not in inputs:
            seed = sum(name.encode())
            layer["group"] = np.random.default_rng(seed).permutation(layer["group"])
    for name, layer in layers.items():
        block, _, last = name.rpartition(".")
        if last in inputs:
            layer["group"] = layers[f"{block}.{inputs[last]}"]["group"]


def gptq_folder(folder: Path, layers: dict[str, Layer], bits: int, **changes: Any) -> Path:
    """A folder of GPTQ with `desc_act`, in groups of 32 unless `changes` of its config say
    otherwise."""
    quantization = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": 32,
        "sym": False,
        "desc_act": True,
    }
    packed = {name: gptq(one, bits) for name, one in layers.items()}
    return write_folder(folder, packed, quantization | changes)


def compressed_folder(folder: Path, layers: dict[str, Layer], bits: int, group: int) -> Path:
    """A folder of compressed-tensors, pack-quantized."""
    weights = {
        "num_bits": bits,
        "type": "int",
        "symmetric": all((one["zero"] == 1 << (bits - 1)).all() for one in layers.values()),
        "strategy": "channel" if group == -1 else "group",
        "group_size": None if group == -1 else group,
    }
    quantization = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
    }
    packed = {name: compressed(one, bits) for name, one in layers.items()}
    return write_folder(folder, packed, quantization)


def float_folder(folder: Path, layers: dict[str, Layer]) -> Path:
    """Writes the model with its layers as floats."""
    return write_folder(
        folder, {name: {"weight": values(one)} for name, one in layers.items()}, None
    )
