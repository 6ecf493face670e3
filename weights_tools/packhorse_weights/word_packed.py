"""Folders of models that GPTQ or AWQ quantised: what they have in place of `.weight` of a layer.

`qweight` holds values and `qzeros` zero points in int32 words, `scales` floats [groups, out]. A
value stands for scale * (q - zero). Frantar et al., arXiv 2210.17323 (GPTQ, as AutoGPTQ and
GPTQModel write it); Lin et al., arXiv 2306.00978 (AWQ, as AutoAWQ writes it in its version "gemm").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse_weights.config import Config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.grouped import (
    Bytes,
    Grouped,
    GroupedTensor,
    GroupFormat,
    Order,
    pack_rows,
)
from packhorse_weights.tensor import LazyTensor, Tensor, to_float32

# The groups in which the one scale of a row is repeated.
_WHOLE_ROW = 128
# Where each of 8 neighbouring output features lies in a word of AWQ, in half bytes.
_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
_PARTS = ("qweight", "qzeros", "scales", "g_idx")


class _Settings(NamedTuple):
    method: str
    bits: int
    group: int  # -1: a row is one group
    symmetric: bool
    offset: int  # what is added to stored zero points
    by_activation: bool  # whether g_idx says which group an input feature is in


class _Layer(NamedTuple):
    values: Bytes  # q, [in, out]
    scales: NDArray[np.float32]  # [groups, out]
    zeros: NDArray[np.float32]  # [groups, out]


def _settings(config: Config) -> _Settings:
    fields = config.section("quantization_config")
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
    if group != -1 and (group < (32 if bits == 4 else 16) or group & (group - 1)):
        raise CheckpointError(
            f"{fields.where}: group_size = {group} is not supported; expected -1 or a power of two "
            "from 32 on"
        )
    if method == "awq":
        fields.choice("version", {"gemm": "gemm", "GEMM": "gemm"}, "gemm")
        if not fields.boolean("zero_point", True):
            raise CheckpointError(f"{fields.where}: zero_point = false is not supported")
        return _Settings(method, bits, group, False, 0, False)
    form = fields.choice("checkpoint_format", {"gptq": "gptq", "gptq_v2": "gptq_v2"}, "gptq")
    return _Settings(
        method,
        bits,
        group,
        fields.boolean("sym", False),
        1 if form == "gptq" else 0,
        fields.boolean("desc_act", False),
    )


def _unpack(words: NDArray[np.int32], bits: int) -> Bytes:
    """The values in the words of a matrix, [rows, columns * 32 / bits], from the lowest bits up."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    values = words.view(np.uint32)[..., None] >> shifts & np.uint32((1 << bits) - 1)
    found: Bytes = values.astype(np.uint8).reshape(len(words), -1)
    return found


def _unpack_awq(words: NDArray[np.int32]) -> Bytes:
    values = _unpack(words, 4).reshape(len(words), -1, 8)
    in_order: Bytes = values[:, :, _AWQ_PLACES].reshape(len(words), -1)
    return in_order


def _read(parts: Mapping[str, Tensor], settings: _Settings) -> _Layer:
    words, zero_words = parts["qweight"].data, parts["qzeros"].data
    scales = to_float32(parts["scales"])
    if settings.method == "awq":  # 8 output features in a word
        return _Layer(_unpack_awq(words), scales, _unpack_awq(zero_words).astype(np.float32))
    # GPTQ has neighbouring input features in a word, and zero points of output features.
    values = _unpack(np.ascontiguousarray(words.T), settings.bits).T
    zeros = _unpack(zero_words, settings.bits)
    zeros = zeros + np.uint8(settings.offset) & np.uint8((1 << settings.bits) - 1)
    return _Layer(values, scales, zeros.astype(np.float32))


class WordPackedTensor(GroupedTensor):
    """A layer [out, in] of such a folder, its groups of features that are neighbours in
    `input_order`."""

    __slots__ = ("_read",)

    _read: Callable[[], _Layer]

    def __init__(
        self,
        form: GroupFormat,
        read: Callable[[], _Layer],
        shape: tuple[int, int],
        stored: tuple[str, int],
        input_order: Order | None,
    ) -> None:
        super().__init__(form, self._floats, shape, stored, input_order)
        object.__setattr__(self, "_read", read)

    def _floats(self) -> NDArray[np.float32]:
        layer = self._read()
        size = self.form.size if len(layer.scales) > 1 else self.shape[1]
        group_of = np.arange(self.shape[1]) // size
        if self.input_order is not None:
            group_of[self.input_order] = group_of.copy()
        return _dequantize(layer, group_of)

    def packed(self, name: str) -> Bytes:
        layer = self._read()
        scales, zeros = layer.scales, layer.zeros
        if len(scales) == 1:
            scales, zeros = (
                np.repeat(one, self.form.groups(self.shape[1]), axis=0) for one in (scales, zeros)
            )
        middle = 1 << (self.form.bits - 1)
        if not self.form.minima and (zeros != middle).any():
            raise CheckpointError(
                f"tensor {name!r} has the zero point {int(zeros[zeros != middle][0])}, but the "
                f"config says sym = true; expected {middle}"
            )
        minima = -(scales * zeros).T if self.form.minima else None
        values = layer.values if self.input_order is None else layer.values[self.input_order]
        return pack_rows(self.form, Grouped(values.T, scales.T, minima), name)


def _dequantize(layer: _Layer, group_of: NDArray[np.integer]) -> NDArray[np.float32]:
    """The floats [out, in]; group_of: of each input feature."""
    values = (layer.values.astype(np.float32) - layer.zeros[group_of]) * layer.scales[group_of]
    return np.ascontiguousarray(values.T)


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
    shape = rows, columns = _check(name, parts, settings)
    size = sum(part.stored[1] for part in parts.values())
    kind = f"{settings.method.upper()}, {settings.bits} bits"
    group = _WHOLE_ROW if settings.group == -1 else settings.group
    form = GroupFormat(settings.bits, group, not settings.symmetric)
    input_order: Order | None = None
    if settings.by_activation:
        group_of = parts["g_idx"].data
        groups = len(parts["scales"].data)
        if ((group_of < 0) | (group_of >= groups)).any():
            raise CheckpointError(
                f"tensor '{name}.g_idx' names a group beyond the {groups} there are"
            )
        in_runs = np.arange(columns) // group if groups > 1 else np.zeros(columns, np.int32)
        if (group_of != in_runs).any():
            # In this order the features of a group are neighbours.
            input_order = np.argsort(group_of, kind="stable").astype(np.int32)
            if (group_of[input_order] != in_runs).any():
                # A group has more or fewer features than others, so the layer is read as floats.
                return LazyTensor(
                    lambda: _dequantize(_read(parts, settings), group_of),
                    (rows, columns),
                    "float32",
                    (kind, size),
                )
    return WordPackedTensor(form, lambda: _read(parts, settings), shape, (kind, size), input_order)


def open_layers(config: Config, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a folder, with `LAYER.weight` in place of the parts of each quantised layer.

    Raises CheckpointError for a `quantization_config` of another kind, and for parts that do not
    fit together.
    """
    if config.fields.get("quantization_config") is None:
        return dict(tensors)
    settings = _settings(config)
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
