"""`packhorse inspect`: shows what a model is and can do, and what memory a session of it takes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import packhorse_weights
from packhorse_weights.spec import (
    blocks_of,
    has_encoder_decoder,
    hears,
    longest_text,
    sees,
    stack_of,
    stem_of,
)
from packhorse_weights.text import read_text_config

from packhorse import plan_memory
from packhorse.cli.outputs import embedding_columns, find_outputs
from packhorse.dtypes import choose_dtype
from packhorse.heads import methods_for
from packhorse.load_options import READING, LoadOptions
from packhorse.planning import plan_generation
from packhorse.text import TextTokenizer

if TYPE_CHECKING:
    from packhorse_weights import Checkpoint


def describe(model: str, load: Mapping[str, Any]) -> dict[str, Any]:
    """Returns everything that is known about a model before `Session.load(model, **load)`, in the
    form of JSON. Raises ValueError if the model cannot be read or run."""
    asked = LoadOptions(**load)
    path = packhorse_weights.find_model(model, asked.revision)
    asked = replace(asked, revision=None)
    checkpoint = packhorse_weights.inspect_checkpoint(path, **asked.reading())
    spec = checkpoint.spec
    generation = asked.generates(path, spec)
    # This comes first because it checks the spec, whose fields can be trusted afterwards.
    least = 1 + stem_of(spec).get("prefix", 0) if sees(spec) else 1
    plan_memory(spec, max_tokens=least, max_sequences=1, kv_tokens=1 if generation else 0)
    text = _images(spec) if sees(spec) else _text(path, spec)
    return {
        "model": model,
        **_stored(checkpoint),
        "size": _sizes(spec),
        "methods": _methods(spec, generation),
        "labels": list(spec.get("heads", {}).get("classifier", {}).get("labels", ())),
        "outputs": {}
        if generation
        else {name: output._asdict() for name, output in find_outputs(spec).items()},
        "embedding": _embedding(checkpoint) | {"truncate_dim": text.pop("truncate_dim", None)},
        "text": text,
        "session": (_generation if generation else _session)(checkpoint, asked),
    }


def _methods(spec: Mapping[str, Any], generation: bool) -> list[str]:
    """The methods for which the model was made; without those of generation also the one that every
    other model supports."""
    if hears(spec) or sees(spec) or has_encoder_decoder(spec):
        return methods_for(spec)
    if generation:
        return ["generate", "chat"]
    return list(dict.fromkeys([*methods_for(spec), "embed"]))


def _stored(checkpoint: Checkpoint) -> dict[str, Any]:
    used = [checkpoint.tensors[theirs] for theirs in checkpoint.names.values()]
    dtypes = Counter[str]()
    for tensor in used:
        name, size = tensor.stored
        dtypes[name] += size
    return {
        "folder": str(checkpoint.folder),
        "family": checkpoint.spec.get("family"),
        "converted": checkpoint.converted,
        "format": checkpoint.format,
        "files": [path.name for path in checkpoint.files],
        "parameters": sum(math.prod(tensor.shape) for tensor in used),
        "bytes": dict(dtypes.most_common()),
    }


def _sizes(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes that the model has; a model without layers has fewer."""
    layers = blocks_of(spec)
    stem = stem_of(spec)
    sizes = {
        **({"vocabulary": stem["vocab_size"]} if "vocab_size" in stem else {}),
        "hidden": stack_of(spec)["hidden_size"],
        "layers": len(layers),
    }
    if not layers:
        return sizes
    attention, *_, feed_forward = layers[0]
    return sizes | {
        "heads": attention["num_heads"],
        "head": attention["head_dim"],
        "feed_forward": feed_forward["size"],
        "activation": feed_forward["activation"],
    }


def _embedding(checkpoint: Checkpoint) -> dict[str, Any]:
    embedding = checkpoint.spec.get("embedding", {})
    pooling = embedding.get("pooling")
    return {
        "columns": embedding_columns(checkpoint.spec),
        "pooling": pooling if isinstance(pooling, list) else [pooling],
        "pooling_reason": checkpoint.pooling_reason,
        "normalize": bool(embedding.get("normalize")),
    }


def _images(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes of images that a model takes, in place of the settings for text."""
    image = spec["image"]
    return {"longest": longest_text(spec), "patch": image["patch_size"], "image": image["size"]}


def _text(path: Path, spec: Mapping[str, Any]) -> dict[str, Any]:
    """The settings for text. If the folder has no readable tokenizer, `error` takes the place of
    the rest."""
    longest = {
        "longest": longest_text(spec, last=hears(spec)),
        "cut_at": spec.get("max_length"),
    }
    try:
        config = read_text_config(path)
    except ValueError as error:
        return {**longest, "error": str(error)}
    found = {
        **longest,
        "tokenizer": str(config.tokenizer_file),
        "truncate_dim": config.truncate_dim,
        "prompts": config.prompts,
        "default_prompt_name": config.default_prompt_name,
    }
    try:
        tokenizer = TextTokenizer(config)
    except (ValueError, ModuleNotFoundError) as error:
        return {**found, "error": str(error)}
    return {**found, "kind": tokenizer.kind, "tokens": tokenizer.vocab_size}


def _generation(checkpoint: Checkpoint, asked: LoadOptions) -> dict[str, Any]:
    """Adds the cache to the fields of `_session`: the longest context and the most sequences of it
    that fit."""
    stored, spec = checkpoint.stored_dtype, checkpoint.spec
    dtype = choose_dtype(asked.dtype, asked.device, stored, generates=True, spec=spec)
    asked = asked.of_session(dtype, generates=True)
    shown = {
        "device": asked.device,
        "dtype": dtype,
        "max_tokens": asked.max_tokens,
        "max_sequences": asked.max_sequences,
    }
    try:
        plan = plan_generation(checkpoint.spec_in(dtype), asked)
    except (RuntimeError, MemoryError) as error:
        return {**shown, "error": str(error)}
    context = min(longest_text(spec, last=True), plan.kv_tokens)
    return {
        **shown,
        "kv_cache_dtype": asked.kv_cache_dtype,
        "kv_tokens_asked": asked.kv_tokens,
        "kv_tokens": plan.kv_tokens,
        "bytes_per_token": plan.bytes_per_token,
        "longest_context": context,
        "sequences_of_longest_context": plan.kv_tokens // context,
        "bytes": {
            "weights": plan.weights.bytes,
            "arena": plan.arena.bytes,
            "cache": plan.kv_cache.bytes,
            "total": plan.total_bytes,
        },
        "buffers": {buffer.name: buffer.bytes for buffer in plan.arena.buffers},
    }


def _session(checkpoint: Checkpoint, asked: LoadOptions) -> dict[str, Any]:
    """The memory of a session. If this build or machine does not have the device, `error` takes the
    place of the bytes."""
    stored, spec = checkpoint.stored_dtype, checkpoint.spec
    dtype = choose_dtype(asked.dtype, asked.device, stored, spec=spec)
    given = {name: value for name, value in asked.again().items() if name not in READING}
    given.pop("kv_tokens", None)
    shown = {"device": asked.device, "max_tokens": 8192, "max_sequences": 256, **given}
    shown["dtype"] = dtype
    try:
        plan = plan_memory(checkpoint.spec_in(dtype), **shown)
    except (RuntimeError, MemoryError) as error:
        return {**shown, "error": str(error)}
    return {
        **shown,
        "bytes": {
            "weights": plan.weights.bytes,
            "arena": plan.arena.bytes,
            "total": plan.total_bytes,
        },
        "buffers": {buffer.name: buffer.bytes for buffer in plan.arena.buffers},
    }
