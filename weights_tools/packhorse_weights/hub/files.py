"""Files of a model repository that a session needs, and checks that a folder has them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from packhorse_weights.adapters.peft import ADAPTER_CONFIG
from packhorse_weights.errors import CheckpointError
from packhorse_weights.files import read_json
from packhorse_weights.sentence_transformers.pooling import read_modules
from packhorse_weights.weight_files import WEIGHT_FILES

# The names of folders of modules in sentence-transformers: 1_Pooling, query_0_Transformer.
_MODULE_FOLDER = re.compile(r"([a-z]+_)?\d+_\w+")
_WEIGHTS = re.compile(r"(model|pytorch_model)(-\d+-of-\d+)?\.(safetensors|bin)(\.index\.json)?")
# Files of BGE-M3 besides the model's own.
_LAYERS = ("sparse_linear.pt", "colbert_linear.pt")
_SUFFIXES = (".json", ".txt", ".model")
_NOTICES = re.compile(r"(LICENSE|LICENCE|NOTICE)(\..*)?", re.IGNORECASE)
_CONFIGS = ("config.json", "packhorse.json", "modules.json")
_TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json")


def _is_needed(path: PurePosixPath) -> bool:
    if len(path.parts) > 1 and not _MODULE_FOLDER.fullmatch(path.parts[0]):
        return False  # weights in other forms: onnx, openvino, ...
    name = path.name
    if name.endswith(".index.json"):
        return False  # an index comes with the weights that it lists
    return name.endswith(_SUFFIXES) or name in _LAYERS or bool(_NOTICES.fullmatch(name))


def _weights_of(names: set[str]) -> set[str]:
    """The weight files of one folder: the first form that `read_weights` would take, with all its
    shards."""
    for name in WEIGHT_FILES:
        if name in names:
            if not name.endswith(".index.json"):
                return {name}
            stem, suffix = name.removesuffix(".index.json").split(".", 1)
            shards = re.compile(rf"{stem}-\d+-of-\d+\.{suffix}")
            return {name, *(one for one in names if shards.fullmatch(one))}
    return set()


def choose_files(names: Iterable[str]) -> list[str]:
    """Chooses the files of a repository that are to be downloaded.

    These are configs, tokenizers, licences and, for each folder, the weights in one form
    (safetensors if there are any). Only the root and the folders of modules count.
    """
    chosen: set[str] = set()
    folders: dict[PurePosixPath, set[str]] = {}
    for name in names:
        path = PurePosixPath(name)
        if _WEIGHTS.fullmatch(path.name):
            folders.setdefault(path.parent, set()).add(path.name)
        elif _is_needed(path):
            chosen.add(name)
    for folder, files in folders.items():
        if not folder.parts or _MODULE_FOLDER.fullmatch(folder.parts[0]):
            chosen |= {str(folder / file) for file in _weights_of(files)}
    return sorted(chosen)


def _has_weights(folder: Path) -> bool:
    """True if all files of the weights exist."""
    for name in WEIGHT_FILES:
        if (folder / name).is_file():
            if not name.endswith(".index.json"):
                return True
            weight_map = read_json(folder / name).get("weight_map")
            files = weight_map.values() if isinstance(weight_map, dict) else ()
            return all((folder / str(file)).is_file() for file in set(map(str, files)))
    return False


def missing_part(folder: Path) -> str | None:
    """Says what a downloaded folder lacks before a session can be loaded from it, or returns None
    if it lacks nothing.

    Other errors in it are found by the code that reads it.
    """
    try:
        modules = read_modules(folder)
        for module in modules:
            if module.kind != "Normalize" and not module.path.is_dir():
                return f"the module {module.path.name}"
        if not any((folder / name).is_file() for name in _CONFIGS):
            # The reader says that it is an adapter without a model.
            return None if (folder / ADAPTER_CONFIG).is_file() else "config.json"
        places = [folder, *(module.path for module in modules)]
        return None if any(map(_has_weights, places)) else "weights"
    except CheckpointError:
        return None


def has_tokenizer(folder: Path) -> bool:
    places = [folder, *(one for one in folder.iterdir() if _MODULE_FOLDER.fullmatch(one.name))]
    return any((place / name).is_file() for place in places for name in _TOKENIZERS) or any(
        any(place.glob("*.model")) for place in places if place.is_dir()
    )
