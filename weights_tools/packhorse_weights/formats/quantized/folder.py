"""Folders whose weights other tools quantised: which tool it was, and the tensors under their usual
names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from packhorse_weights.config import Config, optional_config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.files import child, has_file
from packhorse_weights.formats.quantized.compressed_tensors import open_integers
from packhorse_weights.formats.quantized.float8 import FLOAT8, open_float8_layers
from packhorse_weights.formats.quantized.word_packed import open_words
from packhorse_weights.tensor import Tensor

# Files of older tools, which say it beside config.json -> their methods.
_OLDER = {"quantize_config.json": "gptq", "quant_config.json": "awq"}
_METHODS = ("gptq", "awq", "fp8", "compressed-tensors")
_FORMATS = ("float-quantized", "int-quantized", "naive-quantized", "pack-quantized")


def _settings(config: Config, folder: Path) -> Config:
    """The settings of the quantisation; empty where there is none."""
    fields = config.section("quantization_config")
    if fields.fields:
        return fields
    for name, method in _OLDER.items():
        older = optional_config(folder / name)
        if older.fields:
            return Config({"quant_method": method, **older.fields}, older.where)
    return fields


def named_weights(folder: Path) -> Path | None:
    """The weight file that the settings of AutoGPTQ name, which has a name of its own there; None
    where they name none that is there."""
    settings = optional_config(folder / "quantize_config.json")
    base = settings.fields.get("model_file_base_name")
    if base is None:
        return None
    path = child(folder, f"{base}.safetensors", settings.where)
    return path if has_file(path) else None


def open_quantized(
    config: Config, folder: Path, tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The tensors of the model in `folder`, with a tensor `LAYER.weight` for each quantised layer.

    Raises CheckpointError for a method that is not supported, and for parts that do not fit
    together.
    """
    fields = _settings(config, folder)
    if not fields.fields:
        return dict(tensors)
    method, form = fields.fields.get("quant_method"), fields.fields.get("format")
    if method in ("gptq", "awq"):
        return open_words(fields, tensors)
    if method == "fp8":
        return open_float8_layers(fields, tensors)
    if method == "compressed-tensors" and form in _FORMATS:
        floats = any(tensor.dtype == FLOAT8 for tensor in tensors.values())
        return (open_float8_layers if floats else open_integers)(fields, tensors)
    found = f"quant_method {method!r:.80}"
    if method == "compressed-tensors":
        found += f" with format {form!r:.80}"
    raise CheckpointError(
        f"{fields.where}: {found} is not supported; supported: {', '.join(_METHODS)} (formats "
        f"{', '.join(_FORMATS)}), and GGUF files"
    )
