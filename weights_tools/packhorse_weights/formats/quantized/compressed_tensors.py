"""Folders of compressed-tensors that hold integers: `weight_packed`, 4 or 8 bits of each value in
int32 words (format pack-quantized), or `weight` in int8 (int-quantized).

Beside them lie `weight_scale` [out, groups], or a number; `weight_zero_point` where the form is not
symmetric; `weight_shape`; and `weight_g_idx`, the group of each input feature, in folders of older
versions. Packed values and zero points have half of their range added. Source: the package
compressed-tensors, `compressors`.

Scales of activations are not read: sessions round them by scales of their own, or not at all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse_weights.config import Config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.formats.quantized.scaled_layers import Layer, Layout, layer_tensor, unpack
from packhorse_weights.tensor import Tensor, to_float32

_PARTS = (
    "weight_packed",
    "weight",
    "weight_scale",
    "weight_zero_point",
    "weight_shape",
    "weight_g_idx",
)
_OF_ACTIVATIONS = (
    "input_scale",
    "input_zero_point",
    "output_scale",
    "output_zero_point",
    "k_scale",
    "v_scale",
)
_BITS = (4, 8)


class _Groups(NamedTuple):
    """The settings of layers in the config: bits of values, sizes of groups, and whether all layers
    have zero points."""

    bits: tuple[int, ...]
    sizes: tuple[int, ...]
    zero_points: bool


def _read_groups(fields: Config) -> _Groups:
    fields.section("transform_config").refuse("config_groups", {})
    fields.section("sparsity_config").refuse("format", "dense")
    schemes = fields.section("config_groups")
    bits, sizes, symmetric = set(), set(), set()
    for name in schemes.fields:
        weights = schemes.section(name).section("weights")
        if not weights.fields:
            continue
        weights.choice("type", {"int": "int"}, "int")
        bits.add(weights.integer("num_bits", default=8, low=1, high=8))
        if (size := weights.integer("group_size", default=-1, low=-1)) > 0:
            sizes.add(size)
        symmetric.add(weights.boolean("symmetric", True))
    return _Groups(tuple(sorted(bits)), tuple(sorted(sizes)), symmetric == {False})


def _describe(parts: Mapping[str, Tensor], part: str) -> str:
    return "missing" if part not in parts else parts[part].describe()


def _packed_shape(
    name: str, parts: Mapping[str, Tensor], said: tuple[int, ...]
) -> tuple[tuple[int, int], int]:
    """([out, in], bits of a value) of a packed layer, of the bits that the config has said."""
    words, sizes = parts["weight_packed"], parts.get("weight_shape")
    if words.dtype != "int32" or len(words.shape) != 2:
        raise CheckpointError(
            f"tensor '{name}.weight_packed' is {words.describe()}; expected a matrix of int32"
        )
    if sizes is None or sizes.dtype not in ("int32", "int64") or sizes.shape != (2,):
        raise CheckpointError(
            f"tensor '{name}.weight_shape' is {_describe(parts, 'weight_shape')}; expected int64[2]"
        )
    rows, columns = map(int, sizes.data)
    for bits in said:
        if bits in _BITS and columns > 0 and (rows, -(-columns * bits // 32)) == words.shape:
            return (rows, columns), bits
    raise CheckpointError(
        f"tensor '{name}.weight_packed' is {words.describe()}, which are no {rows} x {columns} "
        f"values of {' or '.join(map(str, said)) or 'no'} bits, as the config says; supported: "
        f"{' and '.join(map(str, _BITS))} bits"
    )


def _count_scales(name: str, parts: Mapping[str, Tensor], rows: int) -> int:
    """The scales of each row; one for the whole matrix counts as one."""
    scale = parts.get("weight_scale")
    if scale is not None and scale.size == 1:
        return 1
    if scale is None or len(scale.shape) not in (1, 2) or scale.shape[0] != rows or not scale.size:
        raise CheckpointError(
            f"tensor '{name}.weight_scale' is {_describe(parts, 'weight_scale')}; expected one "
            f"number, or some for each of {rows} rows"
        )
    return scale.size // rows


def _check_zero_points(
    name: str, parts: Mapping[str, Tensor], shape: tuple[int, int], bits: int
) -> None:
    zero = parts.get("weight_zero_point")
    if zero is None or (zero.dtype == "int8" and zero.size in (1, math.prod(shape))):
        return
    if (zero.dtype, zero.shape) != ("int32", (-(-shape[0] * bits // 32), shape[1])):
        raise CheckpointError(
            f"tensor '{name}.weight_zero_point' is {zero.describe()}; expected one for each of "
            f"{list(shape)} scales"
        )


def _numbers(tensor: Tensor, shape: tuple[int, int]) -> NDArray[np.float32]:
    """One number for all, or as many as there are."""
    flat = to_float32(tensor).reshape(-1)
    return np.broadcast_to(flat, math.prod(shape)).reshape(shape)


def _read(parts: Mapping[str, Tensor], shape: tuple[int, int], count: int, bits: int) -> Layer:
    rows, columns = shape
    middle = 1 << (bits - 1)
    if (words := parts.get("weight_packed")) is not None:
        values = unpack(words.data, bits)[:, :columns]
    else:
        values = parts["weight"].data.view(np.uint8) ^ np.uint8(128)
    zeros: NDArray[np.float32] = np.full((rows, count), middle, np.float32)
    if (zero := parts.get("weight_zero_point")) is not None:
        if zero.dtype == "int8":
            zeros = _numbers(zero, (rows, count)) + np.float32(middle)
        else:
            packed = unpack(np.ascontiguousarray(zero.data.T), bits)
            zeros = packed[:, :rows].T.astype(np.float32)
    return Layer(values.T, _numbers(parts["weight_scale"], (rows, count)).T, zeros.T)


def _open_layer(name: str, parts: Mapping[str, Tensor], groups: _Groups) -> Tensor:
    packed = "weight_packed" in parts
    shape, bits = _packed_shape(name, parts, groups.bits) if packed else (parts["weight"].shape, 8)
    if len(shape) != 2 or 0 in shape:
        raise CheckpointError(f"tensor '{name}.weight' has shape {list(shape)}; expected a matrix")
    rows, columns = shape
    count = _count_scales(name, parts, rows)
    fitting = [size for size in groups.sizes if -(-columns // size) == count]
    if count != 1 and len(fitting) != 1:
        raise CheckpointError(
            f"tensor '{name}.weight_scale' has {count} scales for {columns} input features, but "
            f"the config's group_size is {', '.join(map(str, groups.sizes)) or 'not there'}"
        )
    symmetric = "weight_zero_point" not in parts
    if symmetric and groups.zero_points:
        raise CheckpointError(
            f"tensor '{name}.weight_zero_point' is missing, but the config says symmetric = false"
        )
    _check_zero_points(name, parts, (rows, count), bits)
    group_of = None
    if (order := parts.get("weight_g_idx")) is not None and not (order.data == -1).all():
        if order.dtype not in ("int32", "int64") or order.shape != (columns,):
            raise CheckpointError(
                f"tensor '{name}.weight_g_idx' is {order.describe()}; expected int32[{columns}]"
            )
        group_of = order.data
    layout = Layout(
        (rows, columns), bits, symmetric, None if count == 1 else fitting[0], count, group_of
    )
    size = sum(part.stored[1] for part in parts.values())
    kind = f"compressed-tensors, {bits} bits"
    return layer_tensor(
        f"{name}.weight_g_idx",
        layout,
        lambda: _read(parts, layout.shape, count, bits),
        (kind, size),
    )


def open_integers(fields: Config, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of such a folder, with `LAYER.weight` in place of the parts of each quantised
    layer. fields: what the folder says of how it is quantised.

    Raises CheckpointError for a form that is not supported, and for parts that do not fit
    together.
    """
    groups = _read_groups(fields)
    layers: dict[str, dict[str, Tensor]] = {}
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        layer, _, part = name.rpartition(".")
        is_whole = f"{layer}.weight" in tensors and tensors[f"{layer}.weight"].dtype == "int8"
        if part in _OF_ACTIVATIONS:
            continue
        if part in _PARTS and (is_whole or f"{layer}.weight_packed" in tensors):
            layers.setdefault(layer, {})[part] = tensor
        else:
            found[name] = tensor
    if not layers:
        raise CheckpointError(
            f"{fields.where}: format {fields.fields.get('format')!r:.80}, but there are no weights "
            "in integers: neither LAYER.weight_packed nor LAYER.weight in int8"
        )
    for layer, parts in layers.items():
        found[f"{layer}.weight"] = _open_layer(layer, parts, groups)
    return found
