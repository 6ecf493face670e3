"""Folders of models that GPTQ or AWQ quantised: what they have in place of `.weight` of a layer.

`qweight` holds values and `qzeros` zero points in int32 words, `scales` floats [groups, out]. A
value stands for scale * (q - zero). Frantar et al., arXiv 2210.17323 (GPTQ, as AutoGPTQ and
GPTQModel write it); Lin et al., arXiv 2306.00978 (AWQ, as AutoAWQ writes it in its version "gemm").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse_weights.config import Config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.formats.quantized.scaled_layers import (
    Layer,
    Layout,
    is_kept,
    layer_tensor,
    unpack,
)
from packhorse_weights.quantization.grouped import Bytes
from packhorse_weights.tensor import Tensor, to_float32

# Place of each of 8 neighbouring output features in a word of AWQ, in half bytes.
_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
_PARTS = ("qweight", "qzeros", "scales", "g_idx")


class _Settings(NamedTuple):
    method: str
    bits: int
    group: int  # -1: a row is one group
    symmetric: bool
    offset: int  # added to stored zero points
    by_activation: bool  # whether g_idx says which group an input feature is in


def _settings(fields: Config) -> _Settings:
    fields = fields.renamed({"w_bit": "bits", "q_group_size": "group_size"})
    method = fields.choice("quant_method", {"gptq": "gptq", "awq": "awq"}, "")
    bits = fields.integer("bits", low=2, high=8)
    group = fields.integer("group_size", low=-1, high=1024)
    supported = (4,) if method == "awq" else (4, 8)
    if bits not in supported:
        names = " or ".join(map(str, supported))
        raise CheckpointError(
            f"{fields.where}: bits = {bits} with quant_method {method!r} is not supported; "
            f"expected {names}"
        )
    if group == 0 or not is_kept(bits, None if group == -1 else group):
        raise CheckpointError(
            f"{fields.where}: group_size = {group} is not supported; expected -1 or a power of two "
            "from 32 on"
        )
    if method == "awq":
        fields.choice("version", {"gemm": "gemm", "GEMM": "gemm"}, "gemm")
        if not fields.boolean("zero_point", True):
            raise CheckpointError(f"{fields.where}: zero_point = false is not supported")
        return _Settings(method, bits, group, False, 0, False)
    fields.refuse("is_marlin_format")
    form = fields.choice("checkpoint_format", {"gptq": "gptq", "gptq_v2": "gptq_v2"}, "gptq")
    return _Settings(
        method,
        bits,
        group,
        fields.boolean("sym", False),
        1 if form == "gptq" else 0,
        fields.boolean("desc_act", False),
    )


def _unpack_awq(words: NDArray[np.int32]) -> Bytes:
    values = unpack(words, 4).reshape(len(words), -1, 8)
    in_order: Bytes = values[:, :, _AWQ_PLACES].reshape(len(words), -1)
    return in_order


def _read(parts: Mapping[str, Tensor], settings: _Settings) -> Layer:
    words, zero_words = parts["qweight"].data, parts["qzeros"].data
    scales = to_float32(parts["scales"])
    if settings.method == "awq":  # 8 output features in a word
        return Layer(_unpack_awq(words), scales, _unpack_awq(zero_words).astype(np.float32))
    # GPTQ has neighbouring input features in a word, and zero points of output features.
    values = unpack(np.ascontiguousarray(words.T), settings.bits).T
    zeros = unpack(zero_words, settings.bits)
    zeros = zeros + np.uint8(settings.offset) & np.uint8((1 << settings.bits) - 1)
    return Layer(values, scales, zeros.astype(np.float32))


def _check(name: str, parts: Mapping[str, Tensor], settings: _Settings) -> tuple[int, int]:
    """Returns [out, in] of a layer. Raises CheckpointError for parts that do not fit together."""
    missing = [part for part in _PARTS[:3] if part not in parts]
    if missing:
        raise CheckpointError(f"layer {name!r} has qweight, but no {', '.join(missing)}")
    per_word = 32 // settings.bits
    words = parts["qweight"].shape
    if len(words) != 2:
        raise CheckpointError(f"tensor '{name}.qweight' has shape {list(words)}; expected a matrix")
    if settings.method == "awq":
        columns, rows = words[0], words[1] * per_word
    else:
        columns, rows = words[0] * per_word, words[1]
    groups = 1 if settings.group == -1 else -(-columns // settings.group)
    expected: dict[str, tuple[str, tuple[int, ...]]] = {
        "qweight": ("int32", words),
        "qzeros": ("int32", (groups, rows // per_word)),
        "scales": (parts["scales"].dtype, (groups, rows)),
    }
    if settings.by_activation:
        expected["g_idx"] = ("int32", (columns,))
    for part, (dtype, shape) in expected.items():
        tensor = parts.get(part)
        if tensor is None or (tensor.dtype, tensor.shape) != (dtype, shape):
            found = "missing" if tensor is None else tensor.describe()
            raise CheckpointError(
                f"tensor '{name}.{part}' is {found}; expected {dtype}{list(shape)}"
            )
    return rows, columns


def _open_layer(name: str, parts: Mapping[str, Tensor], settings: _Settings) -> Tensor:
    shape = _check(name, parts, settings)
    layout = Layout(
        shape,
        settings.bits,
        settings.symmetric,
        None if settings.group == -1 else settings.group,
        parts["scales"].shape[0],
        parts["g_idx"].data if settings.by_activation else None,
    )
    kind = f"{settings.method.upper()}, {settings.bits} bits"
    size = sum(part.stored[1] for part in parts.values())
    return layer_tensor(f"{name}.g_idx", layout, lambda: _read(parts, settings), (kind, size))


def open_words(fields: Config, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a folder, with `LAYER.weight` in place of the parts of each quantised layer.
    fields: what the folder says of how it is quantised.

    Raises CheckpointError for a form that is not supported, and for parts that do not fit
    together.
    """
    settings = _settings(fields)
    found: dict[str, Tensor] = {}
    layers: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        layer, _, part = name.rpartition(".")
        if part in _PARTS and f"{layer}.qweight" in tensors:
            layers.setdefault(layer, {})[part] = tensor
        else:
            found[name] = tensor
    for layer, parts in layers.items():
        found[f"{layer}.weight"] = _open_layer(layer, parts, settings)
    return found
