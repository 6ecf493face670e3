"""Parts that the families of image models share: the stem of patches, and tensors that are made of
those of a checkpoint, so that layers need no operators of their own."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from packhorse_weights.activations import ACTIVATIONS
from packhorse_weights.architectures.base import sizes, with_defaults
from packhorse_weights.config import MOST_LAYERS, Config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.spec import Spec
from packhorse_weights.tensor import LazyTensor, Tensor, cast

Tensors = Mapping[str, Tensor]
FloatArray = NDArray[np.float32]

# Positions are resized to any grid: this is the largest image that a session takes, in patches and
# the rows before them.
LONGEST = 1 << 14
_QUICK = 1.702  # quick_gelu is x * sigmoid(1.702 x)
_MOST_SIDE = 1 << 16


def _side(config: Config, name: str, default: int) -> tuple[int, int]:
    """(height, width) of a field that has one number for both, or two."""
    value = config.fields.get(name)
    pair = value if isinstance(value, list) else [default if value is None else value] * 2
    if len(pair) != 2 or not all(type(one) is int and 0 < one <= _MOST_SIDE for one in pair):
        raise CheckpointError(
            f"{config.where}: {name} is {value!r:.80}, expected a number of pixels, or two"
        )
    return pair[0], pair[1]


def patch_size(config: Config, default: int) -> int:
    height, width = _side(config, "patch_size", default)
    if height != width:
        raise CheckpointError(f"{config.where}: patch_size is {height} x {width}, expected squares")
    return height


def stem(
    config: Config,
    *,
    patch: int,
    image: int,
    prefix: int,
    resize: str | None,
    bias: bool = True,
) -> Spec:
    """`patches`, `image` and `max_seqlen` of a description.

    patch, image: pixels where the config does not say. prefix: rows before the patches.
    resize: `positions.resize` of the spec; None: patches have no positions.
    """
    pixels = patch_size(config, patch)
    size = _side(config, "image_size", image)
    channels = config.integer("num_channels", default=3, high=1 << 10)
    rows, columns = size[0] // pixels, size[1] // pixels
    if rows == 0 or columns == 0:
        raise CheckpointError(
            f"{config.where}: image_size {size[0]} x {size[1]} has no patch of {pixels} pixels"
        )
    positions: Spec = {"kind": "none"}
    if resize is not None:
        positions = {"kind": "grid", "rows": rows, "columns": columns, "resize": resize}
    return {
        "patches": {
            "features": channels * pixels * pixels,
            "prefix": prefix,
            "bias": bias,
            "positions": positions,
        },
        "image": {"patch_size": pixels, "channels": channels, "size": list(size)},
        "max_seqlen": LONGEST,
    }


def layers(
    family: str, config: Config, *, eps: float, activation: str, stem_norm: bool = False
) -> Spec:
    """The blocks of a description: norms before them, no causal mask. `eps` and `activation` where
    the config does not say."""
    known = {**ACTIVATIONS, "quick_gelu": "silu"}  # see `made_quick_gelu`
    return {
        **sizes(family, config),
        "norm": {
            "kind": "layer",
            "placement": "pre",
            "eps": config.number("layer_norm_eps", eps),
            "embeddings": stem_norm,
        },
        "attention": {
            "mask": "bidirectional",
            "qkv_bias": config.boolean("qkv_bias", True),
        },
        "ffn": {"kind": "plain", "activation": config.choice("hidden_act", known, activation)},
    }


def with_sizes(config: Config, **own: int) -> Config:
    """The config with the sizes of ViT-B, which most of these families have by default, with a
    family's `own`, and with a number of words, which `sizes` reads and no stem of patches has."""
    defaults = {
        "vocab_size": 1,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        **own,
    }
    return with_defaults(config, **defaults)


def values(tensor: Tensor) -> FloatArray:
    """The values as float32."""
    data: FloatArray = cast(tensor, "float32", "").data
    return data


def flattened(tensor: Tensor) -> Tensor:
    """The weight of a convolution over patches as a matrix [out, channels * rows * columns]."""
    shape = tensor.shape
    if len(shape) == 2:
        return tensor
    return Tensor(tensor.data.reshape(shape[0], -1) if shape else tensor.data, tensor.dtype)


def rows(tensor: Tensor, first: int = 0, count: int | None = None) -> Tensor:
    """Rows of a table, whatever axes of length 1 are before them."""
    table = tensor.data.reshape(-1, tensor.shape[-1])
    end = None if count is None else first + count
    return Tensor(np.ascontiguousarray(table[first:end]), tensor.dtype)


def prefixed(tokens: list[Tensor], positions: Tensor | None, positioned: int) -> Tensor:
    """The rows before the patches, of which the first `positioned` have positions: the first rows
    of a table."""
    made = np.concatenate([values(rows(token)) for token in tokens])
    if positions is not None:
        made[:positioned] += values(rows(positions, 0, positioned))
    return Tensor(made, "float32")


def scaled(tensor: Tensor, factor: Tensor | float, name: str) -> Tensor:
    """The rows of a tensor, each times its element of `factor`, or all times a number."""

    def make() -> FloatArray:
        data: FloatArray = cast(tensor, "float32", name).data
        by: FloatArray = np.full(1, factor if isinstance(factor, float) else 1, np.float32)
        if isinstance(factor, Tensor):
            by = values(factor).reshape(-1, *[1] * (data.ndim - 1))
        made: FloatArray = np.ascontiguousarray(data * by)
        return made

    return LazyTensor(make, tensor.shape, "float32", tensor.stored)


def made_scales(
    prefix: str, tensors: Tensors, config: Config, factors: Mapping[str, str]
) -> dict[str, Tensor]:
    """Dense layers with the factor of each column of their output that a checkpoint keeps beside
    them (layer scale). factors: the layer's name -> the factor's; `{i}` is a layer's number."""
    made = {}
    for i in range(config.integer("num_hidden_layers", high=MOST_LAYERS)):
        for layer, factor in factors.items():
            by = tensors.get(prefix + factor.replace("{i}", str(i)))
            for end in (".weight", ".bias"):
                name = prefix + layer.replace("{i}", str(i)) + end
                if by is not None and name in tensors and tensors[name].shape[:1] == by.shape:
                    made[name] = scaled(tensors[name], by, name)
    return made


def made_quick_gelu(
    prefix: str, tensors: Tensors, config: Config, up: str, down: str, default: str
) -> dict[str, Tensor]:
    """Feed-forward layers of quick_gelu for silu: x sigmoid(a x) = silu(a x) / a."""
    if config.fields.get("hidden_act", default) != "quick_gelu":
        return {}
    made = {}
    for i in range(config.integer("num_hidden_layers", high=MOST_LAYERS)):
        for layer, end, factor in (
            (up, ".weight", _QUICK),
            (up, ".bias", _QUICK),
            (down, ".weight", 1 / _QUICK),
        ):
            name = prefix + layer.replace("{i}", str(i)) + end
            if name in tensors:
                made[name] = scaled(tensors[name], factor, name)
    return made
