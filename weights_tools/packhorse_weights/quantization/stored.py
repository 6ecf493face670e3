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
    """Dense layers of a layer's blocks: `sets` are those that are kept together or not at all, and
    `columns` has the input features of each."""

    sets: list[tuple[str, ...]]
    columns: dict[str, int]


class _StackSizes:
    """Sizes of a stack; `source`: columns of the rows that its cross attention reads."""

    def __init__(self, stack: Config, stem: Config, source: int) -> None:
        self.hidden = stack.integer("hidden_size")
        self.table = stem.integer("embedding_size", default=self.hidden)
        self._source = source
        self._layers: dict[int, _LayerSizes] = {}  # by the number of their weights
        self._alike: _LayerSizes | None = None  # sizes of all layers, in format 1

    def read_layers(self, stack: Config) -> None:
        for i, layer in enumerate(stack.sections("layers")):
            sizes = _LayerSizes([], {})
            for block in layer.sections("blocks"):
                self._add_block(sizes, block)
            self._layers.setdefault(layer.integer("weights", default=i, low=0), sizes)

    def read_alike(self, config: Config) -> None:
        """Sizes of a spec of format 1."""
        ffn = config.section("ffn")
        gated = ffn.choice("kind", {"plain": "", "gated": "gated", "mixture": ""}, "")
        self._alike = _LayerSizes([], {})
        self._add_attention(self._alike, config, "attention", self.hidden)
        self._add_feed_forward(self._alike, config.integer("intermediate_size"), bool(gated))

    def _add_block(self, sizes: _LayerSizes, block: Config) -> None:
        kind = block.fields.get("kind")
        if kind == "cross_attention":
            self._add_attention(sizes, block, "cross_attention", self._source)
        elif kind in ("self_attention", "cca"):
            self._add_attention(sizes, block, "attention", self.hidden)
        elif kind in ("feed_forward", "moe"):
            inner, gated = block.integer("size"), block.boolean("gated", False)
            self._add_feed_forward(sizes, inner, gated)
        else:
            raise CheckpointError(f"{block.where}: kind: expected a block's, found {kind!r:.80}")

    def _add_attention(self, sizes: _LayerSizes, block: Config, name: str, keys: int) -> None:
        heads = block.integer("num_heads")
        head_dim = block.integer("head_dim", default=max(self.hidden // heads, 1))
        query, key, value, output = (
            f"{name}.{part}" for part in ("query", "key", "value", "output")
        )
        if name == "attention":
            sizes.sets.append((query, key, value))
        else:  # queries are of another input than keys and values
            sizes.sets.extend([(query,), (key, value)])
        if head_dim % _HEAD_MULTIPLE == 0:
            sizes.sets.append((output,))
        sizes.columns.update({query: self.hidden, key: keys, value: keys, output: heads * head_dim})

    def _add_feed_forward(self, sizes: _LayerSizes, inner: int, gated: bool) -> None:
        ffn = ("ffn.gate", "ffn.up", "ffn.down")
        sizes.sets.append(ffn if gated else ffn[1:])
        sizes.columns.update(zip(ffn, (self.hidden, self.hidden, inner), strict=True))

    def of_layer(self, number: str) -> _LayerSizes | None:
        found = self._layers.get(int(number)) if number.isdecimal() else None
        return found or self._alike


class _Sizes:
    """The sizes of a spec that are read here. They are checked, as those of a converted folder may
    be anything; the runtime checks all others."""

    def __init__(self, config: Config) -> None:
        self._where = config.where
        self._stacks: dict[str, _StackSizes] = {}  # by what their tensors' names begin with
        if "stacks" in config.fields:
            stacks = config.section("stacks")
            names = list(stacks.fields)
            if not 1 <= len(names) <= 2:
                raise CheckpointError(
                    f"{stacks.where}: expected one stack or two, found {len(names)}"
                )
            source = 0
            for name in names:
                stack = stacks.section(name)
                sizes = _StackSizes(stack, stack.section("stem"), source)
                sizes.read_layers(stack)
                self._stacks[f"{name}." if len(names) > 1 else ""] = sizes
                source = sizes.hidden
        else:
            self._stacks[""] = _StackSizes(config, config, 0)
            self._stacks[""].read_alike(config)
        config.section("heads")

    def tables(self) -> list[str]:
        """Names of the tables of words."""
        return [prefix + TABLE for prefix in self._stacks]

    def split(self, name: str) -> tuple[str, str] | None:
        """("decoder.layers.0.", "ffn.up.weight") of a tensor's name; None if it is of no layer."""
        for prefix in self._stacks:
            if name.startswith(f"{prefix}layers."):
                number, _, rest = name.removeprefix(f"{prefix}layers.").partition(".")
                return f"{prefix}layers.{number}.", rest
        return None

    def of_layer(self, layer: str) -> _LayerSizes:
        """Those of the layer with which names of tensors begin as "layers.NUMBER."."""
        prefix, _, number = layer.rstrip(".").rpartition("layers.")
        if (found := self._stacks[prefix].of_layer(number)) is None:
            raise CheckpointError(f"{self._where}: {layer!r:.80}: there is no such layer")
        return found

    def columns(self, name: str) -> int | None:
        """The input features of a dense layer, or of layers that lie in one tensor; None if it is
        not known."""
        if name == DECODER:
            return [*self._stacks.values()][-1].table
        if name in self.tables():
            return self._stacks[name.removesuffix(TABLE)].table
        if (parts := self.split(name)) is None:
            return None
        layer, rest = parts
        return self.of_layer(layer).columns.get(STACKS.get(rest, (rest,))[0])


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
    if not any(_matrix(tensor) is not None for tensor in tensors.values()):
        return {}
    sizes = _Sizes(Config(spec, "packhorse.json"))
    found: dict[str, tuple[str, GroupedTensor]] = {}
    layers: dict[str, None] = {}  # in order
    for name, tensor in tensors.items():
        parts = sizes.split(name)
        if (matrix := _matrix(tensor)) is None or parts is None:
            continue
        layer, rest = parts
        layers[layer] = None
        dense = rest.removesuffix(".weight").removesuffix(TRANSPOSED)
        for part in STACKS.get(dense, (dense,)):
            found[layer + part] = (name, matrix)
    kept: dict[str, tuple[str, GroupedTensor]] = {}
    for layer in layers:
        for members in sizes.of_layer(layer).sets:
            names = [layer + member for member in members]
            if not all(name in found for name in names):
                continue
            if _take_one_input({name: found[name][1] for name in names}):
                kept.update((name, found[name]) for name in names)
    tables = sizes.tables()
    for name in (f"{DECODER}.weight", *tables):  # a decoder that is tied to a table has no tensor
        if name not in tensors or (matrix := _matrix(tensors[name])) is None:
            continue
        # Rows of a table are read in the order of their columns.
        if name not in tables or matrix.input_order is None:
            kept[name.removesuffix(".weight")] = (name, matrix)
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
        packed = base if base.endswith(TABLE) else f"{base}.weight"
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
        if first not in forms or (columns := sizes.columns(layer)) is None:
            continue
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
