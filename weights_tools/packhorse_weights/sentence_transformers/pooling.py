"""Reads how a sequence becomes one vector, from the files that sentence-transformers writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from packhorse_weights.config import Config, optional_config, read_config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.files import child, has_file, read_bytes
from packhorse_weights.sentence_transformers.transformer import transformer_settings
from packhorse_weights.spec import Spec

# The names of sentence-transformers -> ours.
_MODES = {
    "cls": "cls",
    "mean": "mean",
    "max": "max",
    "lasttoken": "last",
    "mean_sqrt_len_tokens": "mean_sqrt",
    "weightedmean": "weighted_mean",
}
# The older form has one flag for each mode. This is the order in which several are concatenated.
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_INSTRUCTORS = {f"models--hkunlp--instructor-{size}" for size in ("base", "large", "xl")}
# The names that callers may ask for, one or several.
POOLINGS = tuple(_MODES.values())
_MAX_POOLINGS = 16  # the runtime accepts no more
AskedPooling = str | Sequence[str] | None


# The first part of the names of supported modules.
PACKAGES = ("sentence_transformers", "pylate")
OF_TRAINING = ("Dropout",)  # modules that do nothing outside of training


class Module(NamedTuple):
    kind: str  # last part of the class's name, such as "Pooling"
    path: Path
    package: str  # first part of the class's name, such as "sentence_transformers"
    name: str  # the complete name of the class


def read_modules(folder: Path) -> list[Module]:
    """The modules that modules.json lists, in order, without those that only training needs. Empty
    if there is no such file."""
    path = folder / "modules.json"
    if not has_file(path):
        return []
    data = read_bytes(path)
    try:
        modules = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(modules, list) or not all(isinstance(m, dict) for m in modules):
        raise CheckpointError(f"{path}: expected a list of modules")
    types = [str(m.get("type")) for m in modules]
    paths = [child(folder, m.get("path"), str(path)) for m in modules]
    found = [
        Module(name.rpartition(".")[2], its_path, name.partition(".")[0], name)
        for name, its_path in zip(types, paths, strict=True)
    ]
    return [one for one in found if one.kind not in OF_TRAINING or one.package not in PACKAGES]


def read_pooling(path: Path) -> Spec:
    """Reads `embedding.pooling` of the spec, and `include_prompt` if it is false, from the config
    of a Pooling module."""
    config = read_config(path)
    modes = config.fields.get("pooling_mode")
    if modes is None:
        # If no flag is set, sentence-transformers takes the mean.
        modes = [mode for flag, mode in _FLAGS.items() if config.fields.get(flag)]
        modes = modes or ["mean"]
    elif isinstance(modes, str):
        modes = [modes]
    if not isinstance(modes, list) or not modes:
        raise CheckpointError(f"{path}: pooling_mode {modes!r:.80}: expected a mode or a list")
    for mode in modes:
        if not isinstance(mode, str) or mode not in _MODES:
            raise CheckpointError(
                f"{path}: pooling mode {mode!r:.80} is not supported; "
                f"supported: {', '.join(_MODES)}"
            )
    ours = [_MODES[mode] for mode in modes]
    # sentence-transformers knows these models by their names, whatever their files say.
    by_name = not _INSTRUCTORS.isdisjoint(path.parts)
    whole = {} if config.boolean("include_prompt", not by_name) else {"include_prompt": False}
    return {"pooling": ours if len(ours) > 1 else ours[0], **whole}


def default_pooling(config: Config) -> tuple[str, str]:
    """Returns (pooling, why) if no file says how, as sentence-transformers would build the
    model."""
    if config.class_name.endswith("ForCausalLM") and config.boolean("is_causal", True):
        return "last", "the last token, as sentence-transformers takes it of a causal model"
    return "mean", "the mean, as sentence-transformers takes it"


def _check_pooling(pooling: str | Sequence[str]) -> str | list[str]:
    asked: list[Any] = list(pooling) if isinstance(pooling, list | tuple) else [pooling]
    if not 1 <= len(asked) <= _MAX_POOLINGS or not all(one in POOLINGS for one in asked):
        raise CheckpointError(
            f"pooling {pooling!r:.80} is not one of {', '.join(POOLINGS)}, or a list of 1 to "
            f"{_MAX_POOLINGS} of them"
        )
    return asked if len(asked) > 1 else asked[0]


def override_embedding(spec: Spec, pooling: AskedPooling, normalize: bool | None) -> Spec:
    """Returns the spec with the pooling and the normalisation that a caller asks for; None keeps
    what it says.

    Raises CheckpointError if there is no such pooling, or if the model has no pooled embedding.
    """
    if pooling is None and normalize is None:
        return spec
    asked = "pooling" if pooling is not None else "normalize"
    fields = Config(spec, "spec")  # a converted folder may say anything
    heads = fields.section("heads")
    of_tokens = "vectors" in heads.fields and "token_weights" not in heads.fields
    for found, what in (
        ("template" in spec, "is a generative reranker, which gives scores"),
        (of_tokens, "gives a vector for each token"),
        (heads.section("masked_lm").boolean("sparse", False), "gives sparse vectors"),
    ):
        if found:
            raise CheckpointError(f"{asked}: this model {what}, not pooled embeddings")
    embedding = dict(fields.section("embedding").fields)
    if pooling is not None:
        before, after = embedding.get("pooling"), _check_pooling(pooling)
        widths = [len(one) if isinstance(one, list) else 1 for one in (before, after)]
        if embedding.get("dense") and widths[0] != widths[1]:
            raise CheckpointError(
                f"pooling {after!r:.80} gives {widths[1]} times the hidden size, but the dense "
                f"layers after {before!r:.80} take {widths[0]} times"
            )
        embedding["pooling"] = after
    if normalize is not None:
        if not isinstance(normalize, bool):
            raise CheckpointError(f"normalize is {normalize!r:.80}, expected True, False or None")
        embedding["normalize"] = normalize
    return {**spec, "embedding": embedding}


def read_max_length(folder: Path, max_seqlen: int) -> int | None:
    """The length to which a tokenizer should truncate, special tokens included, or None if no file
    says so."""
    found: list[object] = [transformer_settings(folder).fields.get("max_seq_length")]
    tokenizer = optional_config(folder / "tokenizer_config.json")
    found.append(tokenizer.fields.get("model_max_length"))
    for value in found:
        if type(value) is int and value > 0:
            return min(value, max_seqlen)  # "no limit" is written as a huge number
    return None
