"""Choice of the weights that stay quantised in the groups that a model's files have, and their form
for the runtime (docs/weights.md#weights-that-stay-quantised)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from packhorse_weights.config import Config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.layout import STACKS, TRANSPOSED
from packhorse_weights.quantization.grouped import (
    GroupedTensor,
    GroupFormat,
    Order,
    PackedTensor,
    TransposedTensor,
)
from packhorse_weights.spec import Spec
from packhorse_weights.tensor import FileBlocks, LazyTensor, Tensor

# Value of the argument `dtype` that keeps the quantised weights of a file as they are.
STORED = "stored"
DECODER = "lm.decoder"
TABLE = "embeddings.word"
# Ending, in place of `.weight`, of the name of the order of a matrix's input features.
INPUT_ORDER = ".input_order"
# The heads of a layer's output are padded to a multiple of this in the runtime, which groups of
# input features cannot be.
_HEAD_MULTIPLE = 16


def _matrix(tensor: Tensor) -> GroupedTensor | None:
    """The quantised matrix [out, in] that a tensor is, or is the transpose of."""
    if isinstance(tensor, TransposedTensor):
        return tensor.matrix
    return tensor if isinstance(tensor, GroupedTensor) else None


class _LayerSizes(NamedTuple):
    head_dim: int
    attended: int  # columns of what attention gives
    inner: int  # columns between the layers of the feed-forward block
    gated: bool

    def sets(self) -> list[tuple[str, ...]]:
        """The dense layers that are kept together or not at all."""
        ffn = ("ffn.gate", "ffn.up", "ffn.down")
        return [
            ("attention.query", "attention.key", "attention.value"),
            () if self.head_dim % _HEAD_MULTIPLE else ("attention.output",),
            ffn if self.gated else ffn[1:],
        ]


class _Sizes:
    """The sizes of a spec that are read here. They are checked, as those of a converted folder may
    be anything; the runtime checks all others."""

    def __init__(self, config: Config) -> None:
        self._where = config.where
        self._layers: dict[int, _LayerSizes] = {}  # by the number of their weights
        self._alike: _LayerSizes | None = None  # sizes of all layers, in format 1
        if "stacks" in config.fields:
            stacks = config.section("stacks")
            names = list(stacks.fields)
            if len(names) != 1:
                raise CheckpointError(f"{stacks.where}: expected one stack, found {len(names)}")
            stack = stacks.section(names[0])
            stem = stack.section("stem")
        else:
            stack = stem = config
        self._hidden = stack.integer("hidden_size")
        self._table = stem.integer("embedding_size", default=self._hidden)
        if stack is not config:
            self._read_stack(stack)
        else:
            ffn = config.section("ffn")
            gated = ffn.choice("kind", {"plain": "", "gated": "gated", "mixture": ""}, "")
            self._alike = self._layer(config, config.integer("intermediate_size"), bool(gated))
        config.section("heads")

    def _layer(self, attention: Config, inner: int, gated: bool) -> _LayerSizes:
        heads = attention.integer("num_heads")
        head_dim = attention.integer("head_dim", default=max(self._hidden // heads, 1))
        return _LayerSizes(head_dim, heads * head_dim, inner, gated)

    def _read_stack(self, stack: Config) -> None:
        for i, layer in enumerate(stack.sections("layers")):
            blocks = layer.sections("blocks")
            if len(blocks) != 2:
                raise CheckpointError(f"{layer.where}: blocks: expected two, found {len(blocks)}")
            attention, ffn = blocks
            sizes = self._layer(attention, ffn.integer("size"), ffn.boolean("gated", False))
            self._layers.setdefault(layer.integer("weights", default=i, low=0), sizes)

    def of_layer(self, name: str) -> _LayerSizes:
        """Those of the layer that a tensor's name begins with, "layers.NUMBER."."""
        number = name.split(".")[1]
        found = self._layers.get(int(number)) if number.isdecimal() else None
        if (found := found or self._alike) is None:
            raise CheckpointError(f"{self._where}: {name!r:.80}: there is no such layer")
        return found

    def columns(self, layer: str) -> int:
        """The input features of a dense layer."""
        if layer in (DECODER, TABLE):
            return self._table
        if layer.endswith(".attention.output"):
            return self.of_layer(layer).attended
        return self.of_layer(layer).inner if layer.endswith(".ffn.down") else self._hidden


def _take_one_input(layers: Mapping[str, GroupedTensor]) -> bool:
    """True if the layers of a set that one product computes have one order of input features. The
    down projection has an input of its own."""
    orders = [matrix.input_order for name, matrix in layers.items() if not name.endswith(".down")]
    return all(
        one is orders[0]
        or (one is not None and orders[0] is not None and np.array_equal(one, orders[0]))
        for one in orders
    )


def _find(spec: Spec, tensors: Mapping[str, Tensor]) -> dict[str, tuple[str, GroupedTensor]]:
    """{weight that stays quantised: (its tensor or the one of several layers, the matrix)}"""
    found: dict[str, tuple[str, GroupedTensor]] = {}
    for name, tensor in tensors.items():
        matrix = _matrix(tensor)
        if matrix is None or not name.startswith("layers."):
            continue
        _, number, layer = name.removesuffix(".weight").removesuffix(TRANSPOSED).split(".", 2)
        for part in STACKS.get(layer, (layer,)):
            found[f"layers.{number}.{part}"] = (name, matrix)
    kept: dict[str, tuple[str, GroupedTensor]] = {}
    numbers = {name.split(".")[1]: None for name in found}  # numbers of layers, in order
    sizes = _Sizes(Config(spec, "packhorse.json")) if numbers else None
    for number in numbers:
        assert sizes is not None
        for members in sizes.of_layer(f"layers.{number}.").sets():
            names = [f"layers.{number}.{member}" for member in members]
            if not all(name in found for name in names):
                continue
            if _take_one_input({name: found[name][1] for name in names}):
                kept.update((name, found[name]) for name in names)
    for name in (f"{DECODER}.weight", TABLE):  # a decoder that is tied to the table has no tensor
        if name in tensors and (matrix := _matrix(tensors[name])) is not None:
            kept[name.removesuffix(".weight")] = (name, matrix)
    # Rows of a table are read in the order of their columns.
    if TABLE in kept and kept[TABLE][1].input_order is not None:
        del kept[TABLE]
    return kept


def stored_spec(spec: Spec, tensors: Mapping[str, Tensor]) -> Spec | None:
    """The spec that says what stays quantised; None where nothing does. `tensors`: by our names."""
    layers: defaultdict[tuple[GroupFormat, bool], list[str]] = defaultdict(list)
    for name, (_, matrix) in _find(spec, tensors).items():
        layers[matrix.form, matrix.input_order is not None].append(name)
    if not layers:
        return None
    return spec | {
        "quantized": [
            {"bits": form.bits, "group": form.size, "minima": form.minima}
            | ({"input_order": True} if ordered else {})
            | {"layers": names}
            for (form, ordered), names in layers.items()
        ]
    }


def stored_tensors(spec: Spec, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a model as `stored_spec` says."""
    result = dict(tensors)
    for name, matrix in _find(spec, tensors).values():
        result.pop(name, None)
        base = name.removesuffix(TRANSPOSED).removesuffix(".weight")
        packed = TABLE if base == TABLE else f"{base}.weight"
        result[packed] = PackedRows(matrix, packed)
        if matrix.input_order is not None:
            result[base + INPUT_ORDER] = Tensor(matrix.input_order, "int32")
    return result


class PackedRows(LazyTensor):
    """The packed rows of a matrix as a tensor, uint8 [rows, bytes of a row]."""

    __slots__ = ("_matrix",)

    _matrix: GroupedTensor

    def __init__(self, matrix: GroupedTensor, name: str) -> None:
        rows, columns = matrix.shape
        shape = (rows, matrix.form.row_bytes(columns))
        super().__init__(lambda: matrix.packed(name), shape, "uint8", matrix.stored)
        object.__setattr__(self, "_matrix", matrix)

    @property
    def file_blocks(self) -> FileBlocks | None:
        return self._matrix.file_blocks


def read_stored(
    spec: Spec, tensors: Mapping[str, Tensor], where: str
) -> tuple[Spec, dict[str, Tensor]]:
    """The spec of a converted folder without what it says of quantised layers, and the tensors,
    with `GroupedTensor`s for these. Raises CheckpointError where the two do not fit."""
    if "quantized" not in spec:
        return spec, dict(tensors)
    config = Config(spec, f"{where}: packhorse.json")
    sizes = _Sizes(config)
    forms: dict[str, GroupFormat] = {}
    ordered: set[str] = set()
    for entry in config.sections("quantized"):
        form = GroupFormat(
            entry.integer("bits", low=4, high=8),
            entry.integer("group"),
            entry.boolean("minima", False),
        )
        if form.bits not in (4, 8):
            raise CheckpointError(f"{entry.where}: bits: expected 4 or 8, found {form.bits}")
        layers = entry.texts("layers")
        forms |= dict.fromkeys(layers, form)
        if entry.boolean("input_order", False):
            ordered |= set(layers)
    found = dict(tensors)
    for name, tensor in tensors.items():
        layer = name.removesuffix(".weight")
        before, _, last = layer.rpartition(".")
        block, _, kind = before.rpartition(".")
        of_layer = STACKS.get(f"{kind}.{last}")
        first = layer if of_layer is None else f"{block}.{of_layer[0]}"
        if first not in forms:
            continue
        columns = sizes.columns(layer)
        expected = forms[first].row_bytes(columns)
        if tensor.dtype != "uint8" or len(tensor.shape) != 2 or tensor.shape[1] != expected:
            raise CheckpointError(
                f"{where}: tensor {name!r} is {tensor.describe()}; expected uint8 [rows, "
                f"{expected}]"
            )
        order: Order | None = None
        if first in ordered:
            order = _read_order(found.pop(layer + INPUT_ORDER, None), layer, columns, where)
        found[name] = PackedTensor(forms[first], tensor.data, columns, order)
    return {field: value for field, value in spec.items() if field != "quantized"}, found


def _read_order(tensor: Tensor | None, layer: str, columns: int, where: str) -> Order:
    if tensor is None or (tensor.dtype, tensor.shape) != ("int32", (columns,)):
        found = "missing" if tensor is None else tensor.describe()
        raise CheckpointError(
            f"{where}: tensor '{layer}{INPUT_ORDER}' is {found}; expected int32[{columns}]"
        )
    order: Order = tensor.data.astype(np.int32)
    if (np.sort(order) != np.arange(columns)).any():
        raise CheckpointError(
            f"{where}: tensor '{layer}{INPUT_ORDER}' does not name each of {columns} features once"
        )
    return order
