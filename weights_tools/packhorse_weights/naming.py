"""Finds which tensor of a checkpoint is which of ours."""

from __future__ import annotations

import re
from collections.abc import Mapping

from packhorse_weights.architectures.base import Architecture
from packhorse_weights.errors import CheckpointError
from packhorse_weights.layout import STACKS, TRANSPOSED, Shapes, weight_shapes
from packhorse_weights.spec import Spec
from packhorse_weights.tensor import Tensor

# Checkpoints that were converted from TensorFlow long ago use these names for weight and bias of a
# LayerNorm.
_OLD_SUFFIXES = {".weight": ".gamma", ".bias": ".beta"}
_OF_LAYER = re.compile(r"^(\w+\.)?layers\.(\d+)\.")  # ours
_LAYER = re.compile(r"\.\d+\.")
# Tables of which a model has one, by our names.
_ANCHORS = (
    "embeddings.word",
    "encoder.embeddings.word",
    "decoder.embeddings.word",
    "embeddings.patch",
)
_SHOWN = 8  # names listed in a message


def _list(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def find_prefix(family: Architecture, tensors: Mapping[str, Tensor], where: str) -> str:
    """The prefix of the model's names in this checkpoint: "", "bert.", "model.", ..."""
    names = family.names
    anchor = next(names[one] for one in _ANCHORS if one in names)
    if anchor == names.get("embeddings.patch"):
        anchor += ".weight"
    found = sorted(
        name.removesuffix(anchor)
        for name in tensors
        if name == anchor or name.endswith("." + anchor)
    )
    if len(found) != 1:
        problem = f"several models ({_list(found)})" if found else f"no tensor named {anchor}"
        raise CheckpointError(f"{where}: {problem}; its tensors: {_list(sorted(tensors))}")
    return found[0]


def _theirs(names: Mapping[str, str], prefix: str, ours: str, tensors: Mapping[str, Tensor]) -> str:
    layer = _OF_LAYER.match(ours)
    generic = ours if layer is None else _OF_LAYER.sub(r"\1layers.{i}.", ours)
    stem, suffix = generic, ""
    if generic not in names:
        stem, dot, last = generic.rpartition(".")
        suffix = dot + last
    theirs = prefix + names[stem].replace("{i}", layer[2] if layer else "")
    if suffix == TRANSPOSED:
        return theirs + ".weight"
    if suffix and theirs + suffix not in tensors:
        old = theirs + _OLD_SUFFIXES[suffix]
        return old if old in tensors else theirs + suffix
    return theirs + suffix


def _check(
    names: Mapping[str, str],
    shapes: Shapes,
    tensors: Mapping[str, Tensor],
    where: str,
) -> None:
    missing = [theirs for theirs in names.values() if theirs not in tensors]
    if missing:
        raise CheckpointError(
            f"{where}: {len(missing)} of {len(names)} tensors are missing: {_list(missing)}; "
            f"there are: {_list(sorted(tensors))}"
        )
    for ours, shape in shapes.items():
        if tensors[names[ours]].shape != shape:
            raise CheckpointError(
                f"{where}: tensor {names[ours]} has shape {list(tensors[names[ours]].shape)}, "
                f"config.json says {list(shape)}"
            )


def map_layers(
    spec: Spec, layers: Mapping[str, str], tensors: Mapping[str, Tensor], where: str
) -> dict[str, str]:
    """Returns our name -> theirs. `layers` has the complete name of every layer and tensor of the
    spec.

    Raises CheckpointError if tensors are missing or have another shape than the spec says.
    """
    shapes = weight_shapes(spec)
    names = {ours: _theirs(layers, "", ours, tensors) for ours in shapes}
    _check(names, shapes, tensors, where)
    return names


def _is_zero_bias(name: str, tensors: Mapping[str, Tensor]) -> bool:
    """Finds biases of zeros, which tools for quantisation write for layers without one."""
    return name.endswith(".bias") and not any(block.any() for block in tensors[name].blocks())


def map_names(
    family: Architecture,
    prefix: str,
    spec: Spec,
    head: Mapping[str, str],
    tensors: Mapping[str, Tensor],
    where: str,
) -> dict[str, str]:
    """Returns our name -> theirs for every tensor of the spec. `head` names those outside the
    prefix.

    Raises CheckpointError if tensors are missing, have another shape than the config says, or
    belong to the encoder but are not read (such a variant would silently compute something else).
    """
    stacks = [stack for stack in STACKS if f"layers.{{i}}.{stack}" in family.names]
    shapes = weight_shapes(spec, stacks, family.transposed)
    names = {
        ours: _theirs(head, "", ours, tensors)
        if ours in head or ours.rpartition(".")[0] in head
        else _theirs(family.names, prefix, ours, tensors)
        for ours in shapes
    }
    _check(names, shapes, tensors, where)
    encoder = tuple(prefix + part for part in family.encoder)
    read = {*names.values(), *(prefix + name for name in family.unused)}
    unread = [
        name
        for name in sorted(tensors)
        if name.startswith(encoder)
        and name not in read
        and _LAYER.sub(".{i}.", name) not in read
        and not (name.removesuffix(".bias") + ".weight" in read and _is_zero_bias(name, tensors))
    ]
    if unread:
        raise CheckpointError(
            f"{where}: a variant of {spec['family']} that is not supported: it also has "
            f"{_list(unread)}"
        )
    return names
