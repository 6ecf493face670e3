"""Dense layers in separate files, as sentence-transformers' modules and others store them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from packhorse_weights.config import read_config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.files import has_file
from packhorse_weights.tensor import Tensor
from packhorse_weights.weight_files import read_file

# Classes of torch, as Dense modules name them -> our names; None: no activation.
_ACTIVATIONS = {
    "torch.nn.modules.linear.Identity": "",
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.activation.SiLU": "silu",
}
Layer = dict[str, Tensor]  # "weight" and, if there is one, "bias"


class Dense(NamedTuple):
    layer: Layer
    activation: str  # our name of it; "": none
    has_residual: bool
    residual: Layer  # the layer through which its input is added; empty: none


def take_layer(tensors: dict[str, Tensor], prefix: str, path: Path, has_bias: bool = True) -> Layer:
    """Takes prefix + "weight" and, if there is one, prefix + "bias" out of the tensors of a
    file."""
    layer = {
        name: tensors.pop(prefix + name)
        for name in ("weight", "bias")[: 1 + has_bias]
        if prefix + name in tensors
    }
    if "weight" not in layer or len(layer["weight"].shape) != 2:
        raise CheckpointError(
            f"{path}: expected {prefix}weight of two dimensions, beside: "
            f"{', '.join(sorted(tensors)) or 'nothing'}"
        )
    return layer


def refuse_rest(tensors: dict[str, Tensor], path: Path) -> None:
    if tensors:
        raise CheckpointError(f"{path}: also holds {', '.join(sorted(tensors))}")


def read_dense(folder: Path, inputs: str) -> Dense:
    """Reads a Dense module whose input and output are `inputs`."""
    config = read_config(folder / "config.json")
    for name in ("module_input_name", "module_output_name"):
        config.refuse(name, inputs)
    activation = config.choice(
        "activation_function", _ACTIVATIONS, "torch.nn.modules.activation.Tanh"
    )
    has_residual = config.boolean("use_residual", False)
    for name in ("model.safetensors", "pytorch_model.bin"):
        path = folder / name
        if has_file(path):
            tensors = read_file(path)[0]
            layer = take_layer(tensors, "linear.", path)
            size, inputs_size = layer["weight"].shape
            own = has_residual and size != inputs_size
            residual = take_layer(tensors, "residual.", path, has_bias=False) if own else {}
            refuse_rest(tensors, path)
            return Dense(layer, activation, has_residual, residual)
    raise CheckpointError(f"{folder}: no model.safetensors or pytorch_model.bin")
