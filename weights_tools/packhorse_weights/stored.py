"""Which weights of a model stay quantised in the groups that its files have, and as what they go to
the runtime (docs/weights.md#weights-that-stay-quantised)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from packhorse_weights.errors import CheckpointError
from packhorse_weights.grouped import GroupedTensor, GroupFormat, PackedTensor, TransposedTensor
from packhorse_weights.layout import STACKS, TRANSPOSED, Spec
from packhorse_weights.tensor import LazyTensor, Tensor

# What `dtype` is called that keeps them.
STORED = "stored"
DECODER = "lm.decoder"
# The heads of a layer's output are padded to a multiple of this in the runtime, which groups of
# input features cannot be.
_HEAD_MULTIPLE = 16


def _matrix(tensor: Tensor) -> GroupedTensor | None:
    """The quantised matrix [out, in] that a tensor is, or is the transpose of."""
    if isinstance(tensor, TransposedTensor):
        return tensor.matrix
    return tensor if isinstance(tensor, GroupedTensor) else None


def _sets(spec: Spec) -> list[tuple[str, ...]]:
    """The layers of a block that are kept together or not at all."""
    ffn = ("ffn.gate", "ffn.up", "ffn.down")
    head = spec.get("head_dim") or spec["hidden_size"] // spec["num_heads"]
    output = () if head % _HEAD_MULTIPLE else ("attention.output",)
    return [
        ("attention.query", "attention.key", "attention.value"),
        output,
        ffn if spec["ffn"]["kind"] == "gated" else ffn[1:],
    ]


def _find(spec: Spec, tensors: Mapping[str, Tensor]) -> dict[str, tuple[str, GroupFormat]]:
    """{layer that stays quantised: (its tensor or the one of several layers, the form)}"""
    found: dict[str, tuple[str, GroupFormat]] = {}
    for name, tensor in tensors.items():
        matrix = _matrix(tensor)
        if matrix is None or not name.startswith("layers."):
            continue
        _, number, layer = name.removesuffix(".weight").removesuffix(TRANSPOSED).split(".", 2)
        for part in STACKS.get(layer, (layer,)):
            found[f"layers.{number}.{part}"] = (name, matrix.form)
    kept: dict[str, tuple[str, GroupFormat]] = {}
    numbers = {name.split(".")[1]: None for name in found}  # in their order
    for number in numbers:
        for members in _sets(spec):
            names = [f"layers.{number}.{member}" for member in members]
            if all(name in found for name in names):
                kept.update((name, found[name]) for name in names)
    if "lm" in spec.get("heads", {}):
        # A decoder without a tensor of its own is tied to the table.
        names = [name for name in (f"{DECODER}.weight", "embeddings.word") if name in tensors]
        if names and (matrix := _matrix(tensors[names[0]])) is not None:
            kept[DECODER] = (names[0], matrix.form)
    return kept


def stored_spec(spec: Spec, tensors: Mapping[str, Tensor]) -> Spec | None:
    """The spec that says what stays quantised; None where nothing does. `tensors`: by our names."""
    layers: defaultdict[GroupFormat, list[str]] = defaultdict(list)
    for name, (_, form) in _find(spec, tensors).items():
        layers[form].append(name)
    if not layers:
        return None
    return spec | {
        "quantized": [
            {"bits": form.bits, "group": form.size, "minima": form.minima, "layers": names}
            for form, names in layers.items()
        ]
    }


def stored_tensors(spec: Spec, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a model as `stored_spec` says. A matrix that is also a table of embeddings is
    there twice, since the table is read as floats."""
    result = dict(tensors)
    for layer, (name, _) in _find(spec, tensors).items():
        matrix = _matrix(tensors[name])
        assert matrix is not None
        if layer == DECODER:
            result[f"{DECODER}.weight"] = packed_tensor(matrix, f"{DECODER}.weight")
            continue
        result.pop(name, None)
        name = name.removesuffix(TRANSPOSED).removesuffix(".weight") + ".weight"
        result[name] = packed_tensor(matrix, name)
    return result


def packed_tensor(matrix: GroupedTensor, name: str) -> Tensor:
    """The matrix as a tensor of its packed rows."""
    rows, columns = matrix.shape
    shape = (rows, matrix.form.row_bytes(columns))
    return LazyTensor(lambda: matrix.packed(name), shape, "uint8", matrix.stored)


def read_stored(
    spec: Spec, tensors: Mapping[str, Tensor], where: str
) -> tuple[Spec, dict[str, Tensor]]:
    """The spec of a converted folder without what it says of quantised layers, and the tensors,
    with `GroupedTensor`s for these. Raises CheckpointError where the two do not fit."""
    if "quantized" not in spec:
        return spec, dict(tensors)
    try:
        return _read_stored(spec, tensors, where)
    except (TypeError, ValueError, LookupError, AttributeError, ZeroDivisionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(
            f"{where}: packhorse.json: quantized: expected a list of objects with bits, group, "
            "minima and layers, and the sizes of these layers"
        ) from error


def _read_stored(
    spec: Spec, tensors: Mapping[str, Tensor], where: str
) -> tuple[Spec, dict[str, Tensor]]:
    forms: dict[str, GroupFormat] = {}
    for entry in spec["quantized"]:
        form = GroupFormat(int(entry["bits"]), int(entry["group"]), bool(entry["minima"]))
        if form.bits not in (4, 8) or form.size < 1:
            raise ValueError
        forms |= dict.fromkeys(map(str, entry["layers"]), form)
    found = dict(tensors)
    for name, tensor in tensors.items():
        layer = name.removesuffix(".weight")
        before, _, last = layer.rpartition(".")
        block, _, kind = before.rpartition(".")
        of_layer = STACKS.get(f"{kind}.{last}")
        first = layer if of_layer is None else f"{block}.{of_layer[0]}"
        if first not in forms:
            continue
        columns = _columns(spec, layer)
        expected = forms[first].row_bytes(columns)
        if tensor.dtype != "uint8" or len(tensor.shape) != 2 or tensor.shape[1] != expected:
            raise CheckpointError(
                f"{where}: tensor {name!r} is {tensor.describe()}; expected uint8 [rows, "
                f"{expected}]"
            )
        found[name] = PackedTensor(forms[first], tensor.data, columns)
    return {field: value for field, value in spec.items() if field != "quantized"}, found


def _columns(spec: Spec, layer: str) -> int:
    """The input features of a dense layer."""
    hidden = int(spec["hidden_size"])
    if layer == DECODER:
        return int(spec.get("embedding_size") or hidden)
    if layer.endswith(".attention.output"):
        head = spec.get("head_dim") or hidden // int(spec["num_heads"])
        return int(spec["num_heads"]) * int(head)
    return int(spec["intermediate_size"]) if layer.endswith(".ffn.down") else hidden
