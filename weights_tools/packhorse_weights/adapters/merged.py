"""An adapter in the folder of a model, as some tools save both together: its weights become part of
the model's, so that the model computes what transformers does with such a folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from packhorse_weights.adapters.peft import ADAPTER_CONFIG, read_adapter, read_changes
from packhorse_weights.config import optional_config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.files import has_file
from packhorse_weights.layout import TRANSPOSED
from packhorse_weights.spec import Spec
from packhorse_weights.tensor import LazyTensor, Tensor, to_float32


def refuse_adapter_alone(folder: Path) -> None:
    """Raises CheckpointError, saying what it is, for a folder with an adapter and no model."""
    config = optional_config(folder / ADAPTER_CONFIG)
    if config.fields:
        base = config.fields.get("base_model_name_or_path")
        raise CheckpointError(
            f"{folder}: an adapter of the model {base!r:.120}, not a model. Load that model and "
            "add the adapter (add_adapter of a session that generates, or packhorse serve "
            "--adapter NAME=FOLDER), or put the adapter's files into the model's own folder"
        )


def _merged(tensor: Tensor, a: Tensor, b: Tensor, transposed: bool) -> Tensor:
    def make() -> NDArray[np.float32]:
        change = b.data @ a.data
        values: NDArray[np.float32] = to_float32(tensor) + (change.T if transposed else change)
        return np.ascontiguousarray(values)

    kind, size = tensor.stored
    return LazyTensor(make, tensor.shape, "float32", (kind, size + 4 * (a.size + b.size)))


def merge_adapter(
    folder: Path, spec: Spec, names: Mapping[str, str], tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The tensors with the adapter in `folder`, if there is one, added to them. names: ours ->
    theirs.

    Raises CheckpointError for an adapter that does not fit, or does more than what can be added.
    """
    merged = dict(tensors)
    if not has_file(folder / ADAPTER_CONFIG):
        return merged
    if "pages" in spec:  # an adapter changes both halves, of which `spec` is one
        for name, a, b in read_changes(folder, tensors):
            merged[name] = _merged(tensors[name], a, b, transposed=False)
        return merged
    adapter = read_adapter(folder, spec).tensors
    for name in (one.removesuffix(".lora_a") for one in adapter if one.endswith(".lora_a")):
        plain = f"{name}.weight" in names
        theirs = names[f"{name}.weight" if plain else f"{name}{TRANSPOSED}"]
        pair = adapter[f"{name}.lora_a"], adapter[f"{name}.lora_b"]
        merged[theirs] = _merged(tensors[theirs], *pair, transposed=not plain)
    return merged
