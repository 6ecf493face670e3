"""Reads the tensors of a folder, in whatever form its weights are."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from packhorse_weights.errors import CheckpointError
from packhorse_weights.files import child, has_file, read_json
from packhorse_weights.formats.safetensors import read_safetensors
from packhorse_weights.tensor import Tensor

Format = Literal["safetensors", "torch", "gguf", "ctranslate2"]
_TORCH_SUFFIXES = (".bin", ".pt", ".pth")
# The forms in order of preference: the runtime itself can map safetensors.
WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)


def read_file(path: Path) -> tuple[dict[str, Tensor], Format]:
    if path.suffix in _TORCH_SUFFIXES:
        from packhorse_weights.formats.torch.file import read_torch  # zipfile is slow to import

        return read_torch(path), "torch"
    return read_safetensors(path), "safetensors"


def _read_shards(index: Path) -> tuple[dict[str, Tensor], list[Path], Format]:
    """Reads the tensors of all shards. Each must lie where the index says, and nowhere else."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: expected a weight_map of tensor names to files")
    suffixes = _TORCH_SUFFIXES if ".bin." in index.name else (".safetensors",)
    paths = {name: child(index.parent, file, str(index)) for name, file in weight_map.items()}
    tensors: dict[str, Tensor] = {}
    format: Format = "safetensors"
    files = sorted(set(paths.values()))
    for path in files:
        if path.suffix not in suffixes or not has_file(path):
            raise CheckpointError(f"{index}: shard {path.name!r:.120} is missing")
        shard, format = read_file(path)
        expected = {name for name, its in paths.items() if its == path}
        if differing := sorted(expected ^ shard.keys()):
            raise CheckpointError(
                f"{path}: the shard and {index.name} disagree on {len(differing)} tensors, first "
                f"{differing[0]!r:.120}"
            )
        tensors |= shard
    return tensors, files, format


def has_weights(folder: Path) -> bool:
    """Tells whether a folder has weights of a model under the usual names."""
    return any(has_file(folder / name) for name in WEIGHT_FILES)


def read_weights(
    folder: Path, file: Path | None = None
) -> tuple[dict[str, Tensor], list[Path], Format]:
    """(the tensors, the files that they lie in, the form of these). file: this one is read, and not
    what the folder has under the usual names."""
    if file is not None:
        tensors, format = read_file(file)
        return tensors, [file], format
    for name in WEIGHT_FILES:
        path = folder / name
        if has_file(path):
            if name.endswith(".json"):
                return _read_shards(path)
            tensors, format = read_file(path)
            return tensors, [path], format
    there = ", ".join(sorted(path.name for path in folder.iterdir())[:20])
    raise CheckpointError(
        f"{folder}: no weights; expected {', '.join(WEIGHT_FILES[:-1])} or {WEIGHT_FILES[-1]}, "
        f"found: {there or 'nothing'}"
    )
