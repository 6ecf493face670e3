"""A GGUF file as a model: what a Hugging Face folder says in several files, from one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from packhorse_weights.config import Config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.files import files_below, open_file
from packhorse_weights.formats.gguf.config import read_config
from packhorse_weights.formats.gguf.file import MAGIC, GgufFile, read_gguf
from packhorse_weights.formats.gguf.names import read_tensors
from packhorse_weights.formats.gguf.tokenizer import GgufTokenizer, read_tokenizer
from packhorse_weights.tensor import Tensor

# A folder that has one of these is a model itself, whatever else lies in it.
_CONFIGS = ("config.json", "packhorse.json", "modules.json")
# `general.sampling.*` -> generation_config.json.
_SAMPLING = {
    "temp": "temperature",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}


class GgufModel(NamedTuple):
    """`config` holds the fields of a config.json, and `tensors` has the names of a Hugging Face
    folder. `pooling` says how an embedder pools, if the file says it."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    pooling: str | None
    file: GgufFile


def find_gguf(path: Path) -> Path | None:
    """Returns the GGUF file that `path` is, or the one in the folder that it is, or None if it is a
    model in another form. Raises CheckpointError for a folder that has several and nothing else."""
    if path.is_file():
        if path.suffix.lower() == ".gguf":
            return path
        with open_file(path) as file:
            return path if file.read(len(MAGIC)) == MAGIC else None
    if not path.is_dir() or any((path / name).exists() for name in _CONFIGS):
        return None
    files = files_below(path, "*.gguf")
    if len(files) > 1:
        names = ", ".join(file.name for file in files[:8])
        raise CheckpointError(f"{path}: {len(files)} GGUF files ({names}); name one of them")
    return files[0] if files else None


def open_gguf(path: Path) -> GgufModel:
    """Opens a model. Raises CheckpointError if the file is not valid or the model not supported."""
    file = read_gguf(path)
    config, pooling = read_config(file)
    return GgufModel(config, read_tensors(file, config), pooling, file)


def open_tokenizer(path: Path) -> GgufTokenizer:
    """Reads the tokenizer. Raises CheckpointError if the file is not valid, or has no tokenizer or
    one that is not supported."""
    found = read_tokenizer(read_gguf(path))
    if found is None:
        raise CheckpointError(f"{path}: no tokenizer: there is no tokenizer.ggml.model")
    return found


def open_generation(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns what a generation_config.json would say (bos_token_id, pad_token_id, eos_token_id,
    which lists every token that ends an answer, decoder_start_token_id of models that have one, and
    what the file says of sampling) and the fields
    of a tokenizer_config.json, none if there is no tokenizer. A temperature above 0 stands for
    do_sample, of which the file says nothing itself."""
    file = read_gguf(path)
    config = Config(file.metadata, str(path))
    found: dict[str, Any] = {}
    for name, theirs in (("bos", "bos"), ("pad", "padding")):
        key = f"tokenizer.ggml.{theirs}_token_id"
        if file.metadata.get(key) is not None:
            found[f"{name}_token_id"] = config.tokens(key, low=0)
    start = f"{file.metadata.get('general.architecture')}.decoder_start_token_id"
    if file.metadata.get(start) is not None:
        found["decoder_start_token_id"] = config.tokens(start, low=0)
    tokenizer = read_tokenizer(file)
    if tokenizer is not None and tokenizer.stop_ids:
        found["eos_token_id"] = tokenizer.stop_ids
    for theirs, name in _SAMPLING.items():
        if file.metadata.get(f"general.sampling.{theirs}") is not None:
            found[name] = config.number(f"general.sampling.{theirs}", 0.0, high=1e6)
    if file.metadata.get("general.sampling.top_k") is not None:
        found["top_k"] = config.tokens("general.sampling.top_k", low=0)
    if found.get("temperature"):
        found["do_sample"] = True
    return found, tokenizer.settings if tokenizer is not None else {}
