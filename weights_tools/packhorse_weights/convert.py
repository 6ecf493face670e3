"""Writes a converted folder: packhorse.json, model.safetensors and the tokenizer's files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from packhorse_weights.checkpoint import TEXT_TOWER, Checkpoint, inspect_checkpoint
from packhorse_weights.config import Config
from packhorse_weights.dtype_names import dtype_name
from packhorse_weights.errors import CheckpointError
from packhorse_weights.files import has_file, optional_json, read_bytes
from packhorse_weights.formats.gguf.model import open_tokenizer
from packhorse_weights.formats.safetensors import Progress, write_safetensors
from packhorse_weights.generation_files import generation_config
from packhorse_weights.hub.cache import find_model
from packhorse_weights.languages import LANGUAGE_CLASS, language_class
from packhorse_weights.quantization.groupwise import GROUP_SIZES, quantize_in_groups
from packhorse_weights.quantization.per_channel import QUANTIZED_DTYPES, quantize_tensors
from packhorse_weights.quantization.stored import STORED, stored_spec, stored_tensors
from packhorse_weights.reranker import Reranker
from packhorse_weights.sentence_transformers.pooling import AskedPooling
from packhorse_weights.sentence_transformers.transformer import SETTINGS, settings_file
from packhorse_weights.spec import Spec
from packhorse_weights.tensor import WEIGHT_DTYPES, Tensor
from packhorse_weights.tokenizers.files import build_tokenizer, find_settings
from packhorse_weights.tokenizers.settings import chat_tokens
from packhorse_weights.tokenizers.special_tokens import SpecialTokens

# All files that are needed to turn texts into ids and images into patches, and the licence of
# the weights.
_TRAVELLING = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "sentencepiece.bpe.model",
    "source.spm",
    "target.spm",
    "target_vocab.json",
    "config_sentence_transformers.json",
    "preprocessor_config.json",
    "processor_config.json",
    "open_clip_config.json",
    "LICENSE",
    "LICENSE.txt",
    "NOTICE",
)


def _check_destination(folder: Path, overwrite: bool) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: exists and is not a folder")
    if folder.samefile(Path.cwd()):
        raise CheckpointError(
            f"{folder}: is the current folder, which a converted one cannot replace; name another"
        )
    if not any(folder.iterdir()):
        return
    if not overwrite:
        raise CheckpointError(
            f"{folder}: exists and is not empty; overwrite=True (--overwrite) replaces it where it "
            "is a converted folder"
        )
    if not (folder / "packhorse.json").is_file():
        raise CheckpointError(f"{folder}: is not a converted folder, so it is not overwritten")


def _copy_text_files(to: Path, root: Path, model: Path) -> None:
    """Copies these files. `model` is the folder of config.json; its files take precedence over
    those of `root`."""
    files = {
        name: folder / name
        for name in _TRAVELLING
        for folder in (root, model)
        if has_file(folder / name)
    }
    if has_file(settings := settings_file(model)):
        files[SETTINGS] = settings
    for name, file in files.items():
        (to / name).write_bytes(read_bytes(file))
    if (found := generation_config(model)) is not None:
        _write_json(to / "generation_config.json", found)


def _write_tokenizer(to: Path, folders: tuple[Path, ...]) -> None:
    """Writes a tokenizer.json for a folder that has an older form of tokenizer, and the names of
    its tokens. The meaning of that form depends on config.json, which a converted folder does not
    have; what is written here is read without a class that could change it."""
    if (to / "tokenizer.json").is_file():
        _write_class(to / "tokenizer_config.json", folders[0])
        return
    for folder in folders:
        try:
            built = build_tokenizer(folder, folders[0])
        except CheckpointError:
            return  # weights are useful without it; loading the model for text raises the error
        if built is not None and built.pieces is not None:
            _write_class(to / "tokenizer_config.json", folders[0])  # its own files are read again
            return
        if built is not None:
            _write_json(to / "tokenizer.json", built.fields)
            path = to / "tokenizer_config.json"
            settings = Config(optional_json(path), str(path))
            named = language_class(find_settings(folder, folders[0], built))
            special = SpecialTokens(folder, settings, built.names)
            fields = {**chat_tokens(special), **settings.fields}
            if named is not None:
                fields[LANGUAGE_CLASS] = named
            _write_json(path, {**fields, "tokenizer_class": "PreTrainedTokenizerFast"})
            return


def _write_class(path: Path, model: Path) -> None:
    """Writes the class that config.json names into tokenizer_config.json, unless that names one."""
    settings = optional_json(path)
    named = optional_json(model / "config.json").get("tokenizer_class")
    if named and not settings.get("tokenizer_class"):
        _write_json(path, {**settings, "tokenizer_class": named})


def _write_parts_of_gguf(to: Path, path: Path) -> None:
    """The files that a folder has in place of the metadata."""
    _write_json(to / "generation_config.json", generation_config(path) or {})
    try:
        found = open_tokenizer(path)
    except CheckpointError:
        return  # as above
    _write_json(to / "tokenizer.json", found.tokenizer)
    _write_json(
        to / "tokenizer_config.json",
        {**found.settings, "tokenizer_class": "PreTrainedTokenizerFast"},
    )


def _write_json(path: Path, fields: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")


_Made = tuple[Spec, Mapping[str, Tensor], dict[str, str]]


def _made(
    src: Path,
    checkpoint: Checkpoint,
    dtype: str | None,
    quantize: str | None,
    group_size: int | None,
) -> _Made:
    """(spec, tensors, their dtypes) of what is written; the arguments are those of `convert`."""
    tensors = {ours: checkpoint.tensors[theirs] for ours, theirs in checkpoint.names.items()}
    if checkpoint.is_quantized:
        raise CheckpointError(f"{src} is quantised already; convert the model that it came from")
    spec = checkpoint.spec
    grouped = quantize == "int4" or group_size is not None
    dtypes = {
        name: (None if dtype == STORED else dtype)
        or (tensor.dtype if tensor.dtype in WEIGHT_DTYPES else "float32")
        for name, tensor in tensors.items()
    }
    if dtype == STORED or grouped:
        if grouped:
            bits = int(str(quantize).removeprefix("int"))
            tensors = quantize_in_groups(spec, tensors, bits, group_size or GROUP_SIZES[0])
        found = stored_spec(spec, tensors)
        if found is None:
            what = "there is nothing quantised to keep" if dtype == STORED else "no such layers"
            raise CheckpointError(f"{src}: {dtype or quantize}: {what}")
        spec, tensors = found, stored_tensors(spec, tensors)
        dtypes = {
            name: tensor.dtype if tensor.dtype in ("uint8", "int32") else dtypes[name]
            for name, tensor in tensors.items()
        }
    elif quantize is not None:
        plain, tensors = tensors, quantize_tensors(tensors, QUANTIZED_DTYPES[quantize])
        if plain.keys() == tensors.keys():
            raise CheckpointError(f"{src}: quantize: this model has no layers to quantise")
        dtypes = {
            name: dtypes[name] if plain.get(name) is tensor else tensor.dtype
            for name, tensor in tensors.items()
        }
    return spec, tensors, dtypes


def _write_model(folder: Path, made: _Made, progress: Progress | None) -> None:
    spec, tensors, dtypes = made
    write_safetensors(folder / "model.safetensors", tensors, dtypes, progress)
    _write_json(folder / "packhorse.json", spec)


def convert(
    src: str | PathLike[str],
    dst: str | PathLike[str],
    dtype: str | None = None,
    progress: Progress | None = None,
    overwrite: bool = False,
    quantize: str | None = None,
    reranker: Reranker | None = None,
    pooling: AskedPooling = None,
    normalize: bool | None = None,
    *,
    revision: str | None = None,
    group_size: int | None = None,
) -> Path:
    """Converts the model at `src` into `dst`.

    src, reranker, pooling, normalize, revision: see `inspect_checkpoint`. What they ask for is
    written into packhorse.json.

    dtype: "float32", "float16" or "bfloat16"; None keeps each tensor's own. "stored" also keeps
    matrices that the files hold in 4 to 8 bits with scales of groups, for sessions with
    dtype="stored"; otherwise these are written as floats.
    quantize: "int8" stores the dense layers of the blocks in int8, for sessions with dtype="int8",
    and "fp8" in float8, for sessions with dtype="float8";
    "int4", or "int8" with a group_size, in 4 or 8 bits with a scale for each group_size input
    features (32, 64 or 128; None: 32), for sessions with dtype="stored" (docs/weights.md).
    progress is called with (bytes written, bytes in total). `dst` appears complete or not at all,
    also where the process is killed, the disk is full or the power fails. An existing folder is
    replaced only with `overwrite`, and only if this function wrote it. Returns `dst`.
    """
    dtype = None if dtype in (None, "auto") else dtype_name(dtype)
    if dtype not in (None, *WEIGHT_DTYPES, STORED):
        raise CheckpointError(f"dtype {dtype!r} is not one of {', '.join(WEIGHT_DTYPES)}, {STORED}")
    known = ("int4", *QUANTIZED_DTYPES)
    if quantize not in (None, *known):
        raise CheckpointError(f"quantize {quantize!r} is not one of {', '.join(known)}")
    in_groups = quantize not in (None, "fp8")
    if group_size is not None and not (in_groups and group_size in GROUP_SIZES):
        raise CheckpointError(
            f"group_size is {group_size}, quantize {quantize!r}; expected one of "
            f"{', '.join(map(str, GROUP_SIZES))}, and 'int4' or 'int8'"
        )
    if dtype == STORED and quantize is not None:
        raise CheckpointError(f"quantize {quantize!r}, but dtype {STORED!r} keeps what there is")
    destination = Path(dst)
    _check_destination(destination, overwrite)
    src = find_model(src, revision)
    checkpoint = inspect_checkpoint(src, reranker, pooling, normalize)
    made = _made(src, checkpoint, dtype, quantize, group_size)
    texts = None
    if {"similarity", "pages"} & checkpoint.spec.keys():  # the model has two towers
        tower = inspect_checkpoint(src, reranker, None, None, tower="text")
        texts = _made(src, tower, dtype, quantize, group_size)
    from packhorse_weights.new_folder import new_folder

    with new_folder(destination) as scratch:
        _write_model(scratch, made, progress)
        if texts is not None:
            (scratch / TEXT_TOWER).mkdir()
            _write_model(scratch / TEXT_TOWER, texts, progress)
        if checkpoint.format == "gguf":
            _write_parts_of_gguf(scratch, checkpoint.folder)
        else:
            root = src if src.is_dir() else src.parent
            _copy_text_files(scratch, root, checkpoint.folder)
            _write_tokenizer(scratch, (checkpoint.folder, root))
    return destination
